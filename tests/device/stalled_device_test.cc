// A device that does not get on holds up only what needs it, because the threads that read the
// network never wait for a device.

#include <atomic>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "client/psd.h"
#include "core/base/future.h"
#include "core/device/emulated/emulated_device.h"
#include "core/optim/owner/owner_optimizer.h"
#include "core/runtime/runtime.h"
#include "core/store/store.h"
#include "core/store/value.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/test_world.h"
#include "tests/device/device_owner.h"
#include "tests/device/stall.h"

namespace psd {
namespace {

using ::testing::Each;
using testing::Stall;

class StalledDeviceTest : public ::testing::Test {
 protected:
  static constexpr int kThreads = 2;  // of the owner, for each kind of work

  worker::RuntimeOptions Options() {
    worker::RuntimeOptions options;
    options.threads = kThreads;
    const auto later = [this](const FunctionCall&, const Values&) {
      later_called_ = true;
      return later_.future();
    };
    EXPECT_TRUE(options.functions.RegisterAsync("later", later).ok());
    return options;
  }
  RRef Make(const std::string& name, const std::string& device, bool rows = false) {
    CreateOptions options;
    options.requires_grad = true;
    options.device = device;
    options.rows = rows;
    return Must(trainer_->GetOrCreate("owner", name, Full({4, 2}, 2), options));
  }
  // Returns a context with the gradient 1 for every element of `parameter`.
  Context WithGradient(const RRef& parameter) {
    Context context = Must(trainer_->NewContext());
    const std::vector<Variable> here = Must(trainer_->ToHere({parameter}, context));
    EXPECT_TRUE(context.Backward({Sum(here[0])}).ok());
    return context;
  }
  // Waits until `count` threads wait for the device, and checks that `blocked` of them are of the
  // owner's executor and count as blocked.
  void AwaitWaiting(size_t count, size_t blocked) {
    while (host_.device().scheduler().waiting() < count) std::this_thread::yield();
    EXPECT_EQ(host_.owner().runtime().executor_stats().blocked, static_cast<int>(blocked));
  }
  // As above; all of them are of the executor.
  void AwaitWaiting(size_t count) { AwaitWaiting(count, count); }
  // Returns the steps of the optimizer "main" that wait for other trainers.
  size_t WaitingSteps() {
    const store::EntryPtr entry = Must(host_.owner().runtime().store().Lookup("main"));
    const auto* object = entry->value.As<std::shared_ptr<store::Object>>();
    return std::dynamic_pointer_cast<optim::OwnerOptimizer>(*object)->stats().waiting;
  }
  // Checks that `use`, which needs the device, waits for it, and that the owner serves values of
  // the CPU meanwhile. `blocked` is the number of executor threads that wait.
  void ExpectOthersAreServed(const std::function<absl::Status()>& use, int blocked = 1) {
    absl::Status used;
    std::atomic<bool> ended{false};
    std::thread user;
    {
      const Stall stall(host_.device());
      user = std::thread([&] {
        used = use();
        ended = true;
      });
      while (host_.device().scheduler().waiting() == 0 && !ended) std::this_thread::yield();
      EXPECT_FALSE(ended) << used;
      EXPECT_EQ(host_.owner().runtime().executor_stats().blocked, blocked);
      const auto pulled = trainer_->Pull({on_cpu_});
      EXPECT_TRUE(pulled.ok()) << pulled.status();
      const absl::Status stepped = cpu_optimizer_->Step(cpu_gradient_);
      EXPECT_TRUE(stepped.ok()) << stepped;
    }
    user.join();
    EXPECT_TRUE(used.ok()) << used;
  }

  // The calls of the function "later" end with this future.
  Promise<Values> later_;
  std::atomic<bool> later_called_{false};
  DeviceOwner host_{"owner", Options()};
  std::unique_ptr<Worker> trainer_ = StartTrainer("trainer", {host_.owner().address()});
  const RRef on_device_ = Make("w", "emu:0"), on_cpu_ = Make("b", "cpu");
  std::unique_ptr<DistributedOptimizer> cpu_optimizer_ =
      Must(DistributedOptimizer::Create(*trainer_, Sgd{0.1}, {on_cpu_}));
  const Context cpu_gradient_ = WithGradient(on_cpu_);
};

TEST_F(StalledDeviceTest, AFetchWaitsElsewhere) {
  ExpectOthersAreServed([&] { return trainer_->Pull({on_device_}).status(); });
}

TEST_F(StalledDeviceTest, AFetchOfAResultThereWaitsElsewhere) {
  const RRef result = Must(trainer_->Remote("owner", Function::Operator("relu", 1), {on_device_}));
  Must(trainer_->ToHere({result}));
  ExpectOthersAreServed([&] { return trainer_->ToHere({result}).status(); });
}

TEST_F(StalledDeviceTest, ALookUpOfRowsWaitsElsewhere) {
  const RRef table = Make("table", "emu:0", /*rows=*/true);
  const Tensor ids = Tensor::Of<int64_t>({2}, {3, 0});
  ExpectOthersAreServed([&] { return trainer_->LookUpRows({{table, ids}}).status(); });
}

TEST_F(StalledDeviceTest, AProgramWaitsElsewhere) {
  const Function relu = Function::Operator("relu", 1);
  ExpectOthersAreServed([&] { return trainer_->RpcSync("owner", relu, {on_device_}).status(); });
}

// The device's own thread waits for the step, and no thread of the executor.
TEST_F(StalledDeviceTest, AStepGivesUpItsThread) {
  auto optimizer = Must(DistributedOptimizer::Create(*trainer_, Sgd{0.5}, {on_device_}));
  const Context context = WithGradient(on_device_);
  ExpectOthersAreServed([&] { return optimizer->Step(context); }, /*blocked=*/0);
  EXPECT_THAT(Read(*trainer_, on_device_), Each(1.5f));
}

TEST_F(StalledDeviceTest, AStepPublishesBeforeTheDeviceHasDoneItAndIsAnsweredAfterwards) {
  auto optimizer = Must(DistributedOptimizer::Create(*trainer_, Sgd{0.5}, {on_device_}));
  const Context context = WithGradient(on_device_);
  const auto parameter = Must(host_.owner().runtime().store().Lookup("w"))->parameter;
  std::atomic<bool> ended{false};
  std::thread user;
  {
    const Stall stall(host_.device());
    user = std::thread([&] {
      EXPECT_TRUE(optimizer->Step(context).ok());
      ended = true;
    });
    while (parameter->version() == 1 && !ended) std::this_thread::yield();
    EXPECT_FALSE(ended);
  }
  user.join();
  EXPECT_EQ(parameter->version(), 2u);
}

// A program reads the version that a step before it still writes.
TEST_F(StalledDeviceTest, AProgramIsOrderedBehindTheStepThatWritesWhatItReads) {
  auto optimizer = Must(DistributedOptimizer::Create(*trainer_, Sgd{0.5}, {on_device_}));
  const Context context = WithGradient(on_device_);
  const auto parameter = Must(host_.owner().runtime().store().Lookup("w"))->parameter;
  absl::Status stepped;
  std::atomic<bool> ended{false};
  std::thread stepping;
  Future<Values> doubled;
  {
    const Stall stall(host_.device());
    stepping = std::thread([&] {
      stepped = optimizer->Step(context);
      ended = true;
    });
    while (parameter->version() == 1 && !ended) std::this_thread::yield();
    doubled = trainer_->RpcAsync("owner", Function::Operator("add", 2), {on_device_, on_device_});
    AwaitWaiting(2, /*blocked=*/1);  // the device's own thread waits for the step
  }
  stepping.join();
  EXPECT_TRUE(stepped.ok()) << stepped;
  const Values results = Must(doubled.Wait());
  EXPECT_THAT(Elements(results[0].As<Variable>()->tensor()), Each(3.0f));
}

// Whoever sets the future may be a thread that reads the network.
TEST_F(StalledDeviceTest, SettingTheFutureOfAFunctionDoesNotWait) {
  const Tensor result = Must(Tensor::Of<float>({2}, {3, 3}).Clone(&host_.device().memory()));
  const Future<Values> answer = trainer_->RpcAsync("owner", Function::Registered("later"), {});
  while (!later_called_) std::this_thread::yield();
  {
    const Stall stall(host_.device());
    later_.Set(Values{Value(Variable(result))});  // would not return if it read the result
    AwaitWaiting(1);
  }
  const Values results = Must(answer.Wait());
  EXPECT_THAT(Elements(results[0].As<Variable>()->tensor()), Each(3.0f));
}

TEST_F(StalledDeviceTest, TheOwnersOtherWorkGoesOnWhenAllItsThreadsWait) {
  CreateOptions rows;
  rows.rows = true;
  const RRef table = Must(trainer_->GetOrCreate("owner", "table", Full({1024, 128}, 4), rows));
  // Reads half a MiB, which is too much for a thread that reads the network.
  std::vector<int64_t> numbers(1024);
  std::iota(numbers.begin(), numbers.end(), 0);
  const Tensor ids = Tensor::Of<int64_t>({1024}, absl::MakeConstSpan(numbers));
  std::vector<std::thread> users;
  std::vector<absl::Status> pulled(kThreads);
  {
    const Stall stall(host_.device());
    for (absl::Status& each : pulled)
      users.emplace_back([&] { each = trainer_->Pull({on_device_}).status(); });
    AwaitWaiting(pulled.size());
    const auto found = trainer_->LookUpRows({{table, ids}});
    EXPECT_TRUE(found.ok()) << found.status();
  }
  for (std::thread& user : users) user.join();
  EXPECT_THAT(pulled, Each(absl::OkStatus()));
}

// The last trainer's step ends the wait of all, on the thread that has received it.
TEST_F(StalledDeviceTest, AStepThatWaitedForOtherTrainersWaitsElsewhere) {
  OptimizerSettings together;
  together.mode = UpdateMode::Synchronous(2);
  auto other = StartTrainer("other", {host_.owner().address()});
  const RRef others_handle = Must(other->Lookup("owner", "w"));
  auto first =
      Must(DistributedOptimizer::Create(*trainer_, "main", Sgd{0.5}, {on_device_}, together));
  auto second =
      Must(DistributedOptimizer::Create(*other, "main", Sgd{0.5}, {others_handle}, together));
  const Context context = WithGradient(on_device_);
  Context others = Must(other->NewContext());
  ASSERT_TRUE(others.Backward({Sum(Must(other->ToHere({others_handle}, others))[0])}).ok());
  absl::Status first_stepped;
  std::atomic<bool> first_ended{false};
  std::thread first_trainer([&] {
    first_stepped = first->Step(context);
    first_ended = true;
  });
  while (WaitingSteps() == 0 && !first_ended) std::this_thread::yield();
  EXPECT_FALSE(first_ended) << first_stepped;
  ExpectOthersAreServed([&] { return second->Step(others); }, /*blocked=*/0);
  first_trainer.join();
  EXPECT_TRUE(first_stepped.ok()) << first_stepped;
  EXPECT_THAT(Read(*trainer_, on_device_), Each(1.5f));
}

}  // namespace
}  // namespace psd
