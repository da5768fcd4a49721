// A worker dies at the n-th message of a job, for every n. The job creates and fetches parameters,
// runs backward, steps, and passes a reference from owner to owner. The surviving workers get
// errors, hold nothing for the dead one, and have applied every acknowledged change exactly once.
// All workers run in one process, on a network that the test drives message by message.

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/psd.h"
#include "core/base/clock.h"
#include "core/base/timer.h"
#include "core/carrier/faulty/faulty_network.h"
#include "core/runtime/runtime.h"
#include "core/services/calls/call_service.h"
#include "core/services/optimizers/optimizer_service.h"
#include "core/services/values/value_service.h"
#include "gtest/gtest.h"
#include "tests/client/test_world.h"

namespace psd::crash {
namespace {

constexpr char kTrainer[] = "trainer";
const char* const kOwners[] = {"owner0", "owner1"};

// The answers that the trainer got to its steps, one from each owner.
struct Told {
  absl::Status steps[2] = {absl::UnknownError("not begun"), absl::UnknownError("not begun")};
};

class Job {
 public:
  Job() {
    for (const char* owner : kOwners)
      workers_.push_back(NewRuntime(owner, std::string(owner) + ":1"));
    workers_.push_back(NewRuntime(kTrainer, ""));
    for (auto& worker : workers_) Must(worker->Start());
    for (auto& worker : workers_) {
      for (const char* owner : kOwners) {
        if (worker->name() != owner) worker->agent().AddPeer(owner, std::string(owner) + ":1");
      }
    }
  }
  ~Job() {
    network_->StartThread();
    for (auto& worker : workers_) worker->Shutdown(absl::ZeroDuration());
    network_->StopThread();
  }

  // Runs the job, and crashes `victim` at message `kill_at`. Returns false if the job ended before.
  bool Run(const std::string& victim, int kill_at) {
    std::atomic<bool> done{false};
    std::thread work([&] {
      Work();
      done = true;
    });
    std::thread end;
    int messages = 0;
    while (!done) {
      if (Deliver() && ++messages == kill_at) {
        network_->Crash(victim);
        // The test must not wait for calls of the victim, which is still running in this process.
        end = std::thread([&] { Of(victim).Shutdown(absl::ZeroDuration()); });
      }
    }
    work.join();
    if (end.joinable()) end.join();
    return messages >= kill_at;
  }

  // Returns when all workers but `victim` hold no fork, no loan, no context and no anonymous value.
  void WaitUntilNothingIsLeft(const std::string& victim) {
    for (auto& worker : workers_) {
      while (worker->name() != victim && !HoldsNothing(*worker)) {
        Deliver();
      }
    }
  }

  // Returns the parameter's element on owner `i`, or 0 if the parameter was never created.
  float ElementOn(int i) {
    const auto entry = workers_[i]->store().Lookup("w");
    if (!entry.ok()) return 0;
    return Elements(Must(ReadValue<Tensor>(Must((*entry)->Read()))))[0];
  }

  const Told& told() const { return told_; }

 private:
  // Delivers a message. If there has been none for a while, time passes and Deliver returns false.
  // So no lease ends because this thread was kept from delivering.
  bool Deliver() {
    if (network_->Step()) {
      idle_ = 0;
      return true;
    }
    if (++idle_ < 100) {
      std::this_thread::yield();
      return false;
    }
    absl::SleepFor(absl::Milliseconds(1));
    clock_.Advance(absl::Milliseconds(1));
    for (auto& worker : workers_) worker->timers().Poll();
    return false;
  }
  std::unique_ptr<worker::Runtime> NewRuntime(const std::string& name, const std::string& listen) {
    worker::RuntimeOptions options;
    options.name = name;
    options.listen = listen;
    options.carrier = network_->NewCarrier(name);
    options.clock = &clock_;
    options.session.lease = absl::Milliseconds(300);
    options.session.retry_window = absl::Milliseconds(500);
    options.session.reconnect_min = absl::Milliseconds(1);
    options.session.reconnect_max = absl::Milliseconds(20);
    EXPECT_TRUE(options.functions
                    .Register("echo",
                              [](const services::FunctionCall&,
                                 Values arguments) -> absl::StatusOr<Values> { return arguments; })
                    .ok());
    return Must(worker::Runtime::Create(std::move(options)));
  }

  worker::Runtime& Of(const std::string& name) {
    for (auto& worker : workers_) {
      if (worker->name() == name) return *worker;
    }
    return *workers_.back();
  }
  worker::Runtime& trainer() { return *workers_.back(); }

  static bool HoldsNothing(worker::Runtime& worker) {
    const rref::RRefContext::Stats references = worker.rrefs().stats();
    return references.forks + references.users + references.loans == 0 &&
           worker.autograd().stats().contexts == 0 && worker.store().stats().anonymous == 0;
  }

  void Work() {
    Train();
    PassAReferenceAround();
  }

  // Pulls a parameter from each owner, runs backward and steps both.
  void Train() {
    std::vector<RRef> parameters, optimizers;
    Sgd sgd;
    sgd.lr = 1;
    for (const char* owner : kOwners) {
      auto w = trainer().values().GetOrCreate(owner, "w", Zeros({1}), true, call_).Wait();
      if (!w.ok()) return;
      parameters.push_back(*w);
      auto optimizer =
          trainer().optimizer_service().Create(owner, "main", {{sgd, {*w}}}, {}, call_).Wait();
      if (!optimizer.ok()) return;
      optimizers.push_back(*optimizer);
    }
    const auto context = trainer().autograd().NewContext();
    const auto pulled = trainer().values().Fetch(parameters, context, call_).Wait();
    if (pulled.ok()) {
      const Variable loss = Sum(*(*pulled)[0].As<Variable>()) + Sum(*(*pulled)[1].As<Variable>());
      if (trainer().autograd().Backward(context, {loss}, {}).Wait().ok()) {
        Step(optimizers, context->id());
      }
    }
    trainer().autograd().Release(context->id());
  }

  void Step(const std::vector<RRef>& optimizers, GlobalId context) {
    std::vector<Future<optim::StepResult>> steps;
    for (const RRef& optimizer : optimizers) {
      steps.push_back(trainer().optimizer_service().Step(
          optimizer, {trainer().ids().Next(), {context}, {}}, call_));
    }
    for (size_t i = 0; i < steps.size(); ++i) told_.steps[i] = steps[i].Wait().status();
  }

  // Creates a value on one owner and passes its reference to the other owner, which returns it.
  void PassAReferenceAround() {
    const services::CallTarget echo{nullptr, {}, "echo"};
    auto made = trainer().calls().Remote("owner0", echo, {7}, nullptr, call_);
    if (!made.ok()) return;
    auto back = trainer().calls().Run("owner1", echo, {*made}, nullptr, call_).Wait();
    *made = RRef();
    if (!back.ok()) return;
    trainer().values().Fetch({RRef::FromValue((*back)[0])}, nullptr, call_).Wait().IgnoreError();
  }

  std::shared_ptr<carrier::FaultyNetwork> network_ = carrier::FaultyNetwork::Create();
  FakeClock clock_;
  int idle_ = 0;  // calls of Deliver since the last message
  std::vector<std::unique_ptr<worker::Runtime>> workers_;  // the owners, then the trainer
  rpc::CallOptions call_;
  Told told_;
};

// Checks that `element` agrees with the answer `told` to the only step, which subtracts 1.
void CheckStep(const absl::Status& told, float element) {
  if (told.ok()) {
    EXPECT_EQ(element, -1);
    return;
  }
  const auto detail = GetDetail(told);
  const bool unknown = (detail.has_value() && detail->fate_unknown) ||
                       absl::IsDeadlineExceeded(told) || absl::IsCancelled(told);
  if (unknown) {
    EXPECT_TRUE(element == 0 || element == -1) << element;
  } else {
    EXPECT_EQ(element, 0) << told;
  }
}

class KilledAtAnyMessage : public ::testing::TestWithParam<const char*> {};

TEST_P(KilledAtAnyMessage, TheOthersAreToldAndHoldNothingOfIt) {
  const std::string victim = GetParam();
  int kill_at = 1;
  for (bool died = true; died; ++kill_at) {
    SCOPED_TRACE(kill_at);
    Job job;
    died = job.Run(victim, kill_at);
    job.WaitUntilNothingIsLeft(died ? victim : "");
    for (int i = 0; i < 2; ++i) {
      if (victim == kOwners[i] && died) continue;
      if (victim == kTrainer && died) {
        EXPECT_TRUE(job.ElementOn(i) == 0 || job.ElementOn(i) == -1) << job.ElementOn(i);
      } else {
        CheckStep(job.told().steps[i], job.ElementOn(i));
      }
    }
    if (!died) {
      EXPECT_TRUE(job.told().steps[0].ok() && job.told().steps[1].ok());
    }
  }
  EXPECT_GT(kill_at, 20) << "the job has more messages than that";
}

INSTANTIATE_TEST_SUITE_P(Victims, KilledAtAnyMessage,
                         ::testing::Values("owner0", "owner1", kTrainer),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace psd::crash
