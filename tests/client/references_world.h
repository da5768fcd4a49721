#pragma once

// Workers whose functions pass references on, keep them and answer with them, and objects with
// methods.

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "client/calls.h"
#include "client/psd.h"
#include "client/runtime_of.h"
#include "core/base/mutex.h"
#include "core/base/status.h"
#include "core/runtime/runtime.h"
#include "core/services/calls/call_service.h"
#include "core/services/values/value_service.h"
#include "core/store/value.h"
#include "gtest/gtest.h"
#include "tests/client/function_world.h"
#include "tests/client/test_world.h"

namespace psd {

// An object with methods.
class NumberLog : public store::Object {
 public:
  std::string TypeName() const override { return "log"; }
  int64_t Append(int64_t number) {
    MutexLock lock(mutex_);
    numbers_.push_back(number);
    return static_cast<int64_t>(numbers_.size());
  }
  Value All() {
    MutexLock lock(mutex_);
    return Value::OfList({numbers_.begin(), numbers_.end()});
  }

 private:
  Mutex mutex_;  // leaf
  std::vector<int64_t> numbers_ PSD_GUARDED_BY(mutex_);
};

// A place where functions keep references.
struct Drawer {
  Mutex mutex;  // leaf
  std::vector<RRef> kept PSD_GUARDED_BY(mutex);
};

inline absl::StatusOr<Values> FetchHere(const services::FunctionCall& call, const RRef& rref) {
  return call.ToHere({rref});
}

class ReferencesWorld : public FunctionWorld {
 protected:
  explicit ReferencesWorld(std::shared_ptr<Drawer> drawer = std::make_shared<Drawer>())
      : FunctionWorld(Functions(drawer)), drawer_(std::move(drawer)) {}

  RRef Make(const std::string& owner, Value value) {
    RRef made = Must(trainer_->Remote(owner, Named("echo"), {std::move(value)}));
    EXPECT_TRUE(made.confirmed().Wait().ok());
    return made;
  }
  int64_t Fetched(const RRef& rref) { return IntOf(Must(trainer_->ToHere({rref}))[0]); }
  // Makes the call in each mode: by future, by a reference to the result, and synchronously.
  std::vector<Value> InAllModes(const std::string& callee, const std::string& function,
                                const Values& arguments) {
    Future<Values> call = trainer_->RpcAsync(callee, Named(function), arguments);
    RRef remote = Must(trainer_->Remote(callee, Named(function), arguments));
    return {Must(trainer_->RpcSync(callee, Named(function), arguments))[0], Must(call.Wait())[0],
            Must(trainer_->ToHere({remote}))[0]};
  }
  void EmptyDrawer() {
    std::vector<RRef> kept;
    MutexLock lock(drawer_->mutex);
    kept.swap(drawer_->kept);
  }
  // Waits until no worker has references, or values without a name.
  void WaitUntilNothingIsLeft() {
    for (worker::Runtime* runtime :
         {&owner0_.runtime(), &owner1_.runtime(), &RuntimeOf(*trainer_)}) {
      for (;;) {
        const rref::RRefContext::Stats stats = runtime->rrefs().stats();
        if (stats.owners + stats.forks + stats.users + stats.pending_users + stats.loans == 0) {
          break;
        }
        std::this_thread::yield();
      }
      while (runtime->store().stats().anonymous > 0) std::this_thread::yield();
    }
  }

  const std::shared_ptr<Drawer> drawer_;  // shared with the functions

 private:
  // Returns the functions that every worker offers besides those of FunctionWorld.
  static Offer Functions(const std::shared_ptr<Drawer>& drawer) {
    Offer offer;
    offer.more = [drawer, parking = offer.parking](FunctionRegistry& functions) {
      AddFunctions(functions, drawer, parking);
    };
    return offer;
  }
  static void AddFunctions(FunctionRegistry& functions, const std::shared_ptr<Drawer>& drawer,
                           const std::shared_ptr<Parking>& parking) {
    using services::FunctionCall;
    using Result = absl::StatusOr<Values>;
    auto add = [&](const std::string& name, services::SyncFunction function) {
      EXPECT_TRUE(functions.Register(name, std::move(function)).ok());
    };
    add("fetch", [](const FunctionCall& call, Values arguments) -> Result {
      return FetchHere(call, RRef::FromValue(arguments[0]));
    });
    add("fetch_both", [](const FunctionCall& call, Values arguments) -> Result {
      PSD_ASSIGN_OR_RETURN(Values a, FetchHere(call, RRef::FromValue(arguments[0])));
      PSD_ASSIGN_OR_RETURN(Values b, FetchHere(call, RRef::FromValue(arguments[1])));
      return Values{IntOf(a[0]) + IntOf(b[0])};
    });
    add("about", [](const FunctionCall&, Values arguments) -> Result {
      const RRef rref = RRef::FromValue(arguments[0]);
      return Values{rref.owner(), rref.is_owner(), rref.confirmed().IsReady(), rref.ToString(),
                    rref.value_id().ToString()};
    });
    add("make", [](const FunctionCall& call, Values arguments) -> Result {
      PSD_ASSIGN_OR_RETURN(RRef kept, call.Keep(arguments[0]));
      return Values{kept};
    });
    add("make_list", [](const FunctionCall& call, Values) -> Result {
      Value::List own;
      for (int i = 0; i < 3; ++i) {
        PSD_ASSIGN_OR_RETURN(RRef kept, call.Keep(i));
        own.push_back(kept);
      }
      return Values{Value::OfList(std::move(own))};
    });
    add("remote", [](const FunctionCall& call, Values arguments) -> Result {
      PSD_ASSIGN_OR_RETURN(
          RRef made, call.Remote(*arguments[0].As<std::string>(), Named("echo"), {arguments[1]}));
      return Values{made};
    });
    add("begin", [](const FunctionCall& call, const Values& arguments) -> Result {
      PSD_ASSIGN_OR_RETURN(RRef begun,
                           call.Remote(*arguments[0].As<std::string>(), Named("park"), {}));
      return Values{begun};
    });
    add("keep", [drawer](const FunctionCall&, Values arguments) -> Result {
      MutexLock lock(drawer->mutex);
      drawer->kept.push_back(RRef::FromValue(arguments[0]));
      return Values{};
    });
    // Wraps its argument in a reference and forwards that reference to the next worker, a given
    // number of times.
    add("forward", [](const FunctionCall& call, Values arguments) -> Result {
      const int64_t left = IntOf(arguments[1]);
      if (left == 0) return FetchHere(call, RRef::FromValue(arguments[0]));
      const std::string& here = call.self().name;
      const std::string next = here == "owner0"   ? "owner1"
                               : here == "owner1" ? "trainer0"
                                                  : "owner0";
      PSD_ASSIGN_OR_RETURN(RRef wrapped, call.Remote(next, Named("unwrap"), {arguments[0]}));
      return call.RpcSync(next, Named("forward"), {wrapped, left - 1});
    });
    add("unwrap", [](const FunctionCall& call, Values arguments) -> Result {
      return FetchHere(call, RRef::FromValue(arguments[0]));
    });
    add("new_log", [](const FunctionCall&, Values) -> Result {
      return Values{Value(std::shared_ptr<store::Object>(std::make_shared<NumberLog>()))};
    });
    EXPECT_TRUE(
        functions
            .RegisterMethod<NumberLog>("append",
                                       [](NumberLog& log, const FunctionCall&, Values arguments) {
                                         return Result(Values{log.Append(IntOf(arguments[0]))});
                                       })
            .ok());
    EXPECT_TRUE(functions
                    .RegisterMethod<NumberLog>(
                        "all", [](NumberLog& log, const FunctionCall&,
                                  const Values&) { return Result(Values{log.All()}); })
                    .ok());
    EXPECT_TRUE(functions
                    .RegisterAsyncMethod<NumberLog>(
                        "append_later",
                        [parking](const std::shared_ptr<NumberLog>& log, const FunctionCall&,
                                  Values arguments) {
                          return parking->Park().Then(
                              [log, arguments](const absl::StatusOr<Values>& go) -> Result {
                                if (!go.ok()) return go.status();
                                return Values{log->Append(IntOf(arguments[0]))};
                              });
                        })
                    .ok());
  }
};

}  // namespace psd
