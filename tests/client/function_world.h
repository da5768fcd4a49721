#pragma once

// Workers with registered functions that call other workers, park or fail, for tests of calls.

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "client/calls.h"
#include "client/psd.h"
#include "client/runtime_of.h"
#include "core/base/mutex.h"
#include "core/runtime/runtime.h"
#include "core/services/calls/call_service.h"
#include "gtest/gtest.h"
#include "tests/client/test_world.h"

namespace psd {

// Parks the calls of asynchronous functions until the test answers them. Thread-safe.
class Parking {
 public:
  Future<Values> Park() PSD_EXCLUDES(mutex_) {
    Promise<Values> promise;
    Future<Values> future = promise.future();
    MutexLock lock(mutex_);
    parked_.push_back(std::move(promise));
    arrived_.NotifyAll();
    return future;
  }
  // Takes the oldest parked call, and waits until there is one. The caller answers it.
  Promise<Values> Take() PSD_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    while (parked_.empty()) arrived_.Wait(mutex_);
    Promise<Values> promise = std::move(parked_.front());
    parked_.erase(parked_.begin());
    return promise;
  }
  size_t size() PSD_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return parked_.size();
  }

 private:
  Mutex mutex_;  // leaf
  CondVar arrived_;
  std::vector<Promise<Values>> parked_ PSD_GUARDED_BY(mutex_);
};

// Calls a function of another worker from within a function.
inline Future<Values> CallOn(worker::Runtime& runtime, const std::string& callee,
                             const std::string& function, Values arguments) {
  rpc::CallOptions options;
  options.timeout = absl::ZeroDuration();
  return runtime.calls().Run(callee, {nullptr, {}, function}, std::move(arguments), nullptr,
                             options);
}

inline int64_t IntOf(const Value& value) {
  const auto* number = value.As<int64_t>();
  if (number == nullptr) {
    ADD_FAILURE() << value.KindName() << " is no int";
    return -1;
  }
  return *number;
}

// Returns the ints of a list.
inline std::vector<int64_t> IntsOf(const Value& value) {
  std::vector<int64_t> ints;
  for (const Value& item : *value.AsList()) ints.push_back(IntOf(item));
  return ints;
}

// The functions that every worker of these tests offers. They share `parking` with the test.
struct Offer {
  std::shared_ptr<Parking> parking = std::make_shared<Parking>();  // shared with the functions
  std::function<void(FunctionRegistry&)> more;  // registers further functions; may be null

  FunctionRegistry Functions() const {
    FunctionRegistry functions;
    auto add = [&](const std::string& name, services::SyncFunction function) {
      EXPECT_TRUE(functions.Register(name, std::move(function)).ok());
    };
    using services::FunctionCall;
    using Result = absl::StatusOr<Values>;
    add("echo", [](const FunctionCall&, Values arguments) -> Result { return arguments; });
    add("who", [](const FunctionCall& call, Values) -> Result {
      return Values{call.self().name, call.caller().name};
    });
    add("add", [](const FunctionCall&, Values arguments) -> Result {
      if (arguments.size() != 2) return absl::InvalidArgumentError("add takes two ints");
      return Values{*arguments[0].As<int64_t>() + *arguments[1].As<int64_t>()};
    });
    add("nothing", [](const FunctionCall&, Values) -> Result { return Values{}; });
    add("fail", [](const FunctionCall&, Values) -> Result {
      return absl::OutOfRangeError("first line\n\tsecond \"line\"");
    });
    const auto wear_out = [] { throw std::runtime_error("worn out" + std::string(5000, '!')); };
    add("throw", [wear_out](const FunctionCall&, Values) -> Result {
      wear_out();
      return Values{};
    });
    add("throw_int", [](const FunctionCall&, Values) -> Result { throw 7; });
    EXPECT_TRUE(functions
                    .RegisterAsync("throw_at_once",
                                   [wear_out](const FunctionCall&, Values) -> Future<Values> {
                                     wear_out();
                                     return {};
                                   })
                    .ok());
    // Takes a worker, a function of it and its arguments, and answers what that function answers.
    add("call", [](const FunctionCall& call, Values arguments) -> Result {
      std::string callee = *arguments[0].As<std::string>(), name = *arguments[1].As<std::string>();
      arguments.erase(arguments.begin(), arguments.begin() + 2);
      return call.RpcSync(callee, Function::Registered(name), std::move(arguments));
    });
    EXPECT_TRUE(functions
                    .RegisterAsync("park", [parking = parking](const FunctionCall&,
                                                               Values) { return parking->Park(); })
                    .ok());
    EXPECT_TRUE(functions
                    .RegisterAsync("call_async",
                                   [](const FunctionCall& call, Values arguments) {
                                     std::string callee = *arguments[0].As<std::string>();
                                     std::string name = *arguments[1].As<std::string>();
                                     arguments.erase(arguments.begin(), arguments.begin() + 2);
                                     return call.RpcAsync(callee, Function::Registered(name),
                                                          std::move(arguments));
                                   })
                    .ok());
    if (more != nullptr) more(functions);
    return functions;
  }
  worker::RuntimeOptions Options() const {
    worker::RuntimeOptions options;
    options.functions = Functions();
    return options;
  }
};

// Two owners that know each other, and a trainer that is attached to both. All offer the same
// functions.
class FunctionWorld : public ::testing::Test {
 protected:
  explicit FunctionWorld(Offer offer = {}) : offer_(std::move(offer)) {
    owner0_.runtime().agent().AddPeer("owner1", owner1_.address().address);
    owner1_.runtime().agent().AddPeer("owner0", owner0_.address().address);
  }

  static Function Named(const std::string& name) { return Function::Registered(name); }
  std::unique_ptr<Worker> Start(const std::string& name) const {
    WorkerOptions options;
    options.name = name;
    options.owners = {owner0_.address(), owner1_.address()};
    options.functions = offer_.Functions();
    return Must(Worker::Start(std::move(options)));
  }
  // Waits until no worker holds forks, for itself or for others.
  void WaitUntilReleased() {
    for (worker::Runtime* runtime :
         {&owner0_.runtime(), &owner1_.runtime(), &RuntimeOf(*trainer_)}) {
      for (;;) {
        const rref::RRefContext::Stats stats = runtime->rrefs().stats();
        if (stats.forks + stats.users + stats.loans == 0) break;
        std::this_thread::yield();
      }
    }
  }

  const Offer offer_;
  Parking& parking_ = *offer_.parking;
  TestOwner owner0_{"owner0", offer_.Options()};
  TestOwner owner1_{"owner1", offer_.Options()};
  std::unique_ptr<Worker> trainer_ = Start("trainer0");
};

}  // namespace psd
