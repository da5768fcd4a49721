// A rank that wants the result of a call on its device: who copies it there, and what happens when
// that comes late.

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/base/buffer.h"
#include "core/base/clock.h"
#include "core/base/executor.h"
#include "core/base/status.h"
#include "core/base/timer.h"
#include "core/device/emulated/emulated_device.h"
#include "core/services/collectives/collective_call.h"
#include "core/services/collectives/collective_group.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/test_world.h"
#include "tests/core/services/collectives/made_up_rank.h"
#include "tests/device/stall.h"
#include "tests/device/test_device.h"

namespace psd::services {
namespace {

using ::testing::HasSubstr;

// Refuses tasks while it is full, and runs others on a worker's executor.
class FullExecutor : public Executor {
 public:
  explicit FullExecutor(Executor& executor) : executor_(executor) {}
  absl::Status Submit(Task task) override {
    if (is_full) return absl::ResourceExhaustedError("full");
    return executor_.Submit(std::move(task));
  }

  std::atomic<bool> is_full{false};

 private:
  Executor& executor_;
};

// Worker a gets a tensor of b on a device of its own. The test moves a's clock, and is the thread
// that receives messages.
class DeviceResultTest : public MadeUpRankTest {
 protected:
  DeviceResultTest() {
    GroupMembers members = group_->members();
    group_ = std::make_shared<CollectiveGroup>(
        CollectiveGroup::Uses{a_.runtime().agent(), executor_, timers_, clock_, nullptr}, members);
    call_.operation = Operation::kBroadcast;
    call_.root = 1;
  }
  // Ends all messages, which use the clock.
  ~DeviceResultTest() override {
    other_->GiveUp(absl::InternalError("the test has ended"));
    group_->GiveUp(absl::InternalError("the test has ended"));
    Advance(absl::Milliseconds(1));  // a copy that waits for the executor is given up
    WaitForOwners(group_, 1);
    group_.reset();
  }
  Future<CollectiveGroup::Tensors> Start() {
    return group_->Start(call_, {}, absl::Seconds(60), device_);
  }
  absl::Status Arrive() {
    call_.form = TensorForm{DType::kF32, {1}};
    return group_->ServeEnter(1, Enter(0, call_), {Buffer::FromString(Data(7))});
  }
  void ExpectLate() {
    const auto result = Start();
    EXPECT_TRUE(Arrive().ok());
    Advance(absl::Seconds(60));
    EXPECT_FALSE(result.IsReady());
    Advance(absl::Milliseconds(100));
    const absl::Status late = result.Wait().status();
    EXPECT_TRUE(absl::IsDeadlineExceeded(late)) << late;
    EXPECT_THAT(std::string(late.message()), HasSubstr("not to emu:0 before the deadline"));
    EXPECT_EQ(GetDetail(late)->worker, "a");
    EXPECT_EQ(group_->failure(), late);
  }
  void Advance(absl::Duration by) { MadeUpRankTest::Advance(clock_, timers_, by); }

  const std::shared_ptr<EmulatedDevice> device_ = testing::NewTestDevice(/*seed=*/0);
  FullExecutor executor_{a_.runtime().executor()};
  FakeClock clock_;
  TimerQueue timers_{clock_};
  CollectiveCall call_;
};

TEST_F(DeviceResultTest, AThreadThatReceivesMessagesDoesNotCopyWhenTheExecutorIsFull) {
  const auto result = Start();
  executor_.is_full = true;
  const size_t copies = device_->copies_added();
  EXPECT_TRUE(Arrive().ok());
  Advance(absl::Milliseconds(1));
  EXPECT_FALSE(result.IsReady());
  EXPECT_EQ(device_->copies_added(), copies);
  executor_.is_full = false;
  Advance(absl::Milliseconds(1));
  const Tensor got = Must(result.Wait())[0];
  EXPECT_EQ(got.device(), device_.get());
  EXPECT_EQ(Elements(Must(got.ToHost())), std::vector<float>{7});
  Advance(absl::Seconds(61));
  EXPECT_TRUE(group_->failure().ok()) << group_->failure();
}

TEST_F(DeviceResultTest, ADeviceThatDoesNothingMakesTheResultLate) {
  const testing::Stall stall(*device_);
  ExpectLate();
}

TEST_F(DeviceResultTest, AResultThatComesAfterTheDeadlineIsCopiedToo) {
  const auto result = Start();
  executor_.is_full = true;
  clock_.Advance(absl::Seconds(60) + absl::Milliseconds(200));  // no timer has run yet
  EXPECT_TRUE(Arrive().ok());
  Advance(absl::Milliseconds(1));
  EXPECT_TRUE(group_->failure().ok()) << group_->failure();
  executor_.is_full = false;
  Advance(absl::Milliseconds(1));
  EXPECT_EQ(Elements(Must(Must(result.Wait())[0].ToHost())), std::vector<float>{7});
}

TEST_F(DeviceResultTest, AnExecutorThatStaysFullMakesTheResultLate) {
  executor_.is_full = true;
  ExpectLate();
}

}  // namespace
}  // namespace psd::services
