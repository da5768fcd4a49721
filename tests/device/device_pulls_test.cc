// A large parameter on an emulated device comes to a trainer in pieces: the copies and the pinned
// memory, and what ends a pull in the middle.

#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/psd.h"
#include "core/base/future.h"
#include "core/device/emulated/emulated_device.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/test_world.h"
#include "tests/device/pulls_in_pieces.h"
#include "tests/device/stall.h"
#include "tests/device/test_device.h"

namespace psd {
namespace {

using ::testing::HasSubstr;

class DevicePullsTest : public PullsInPieces<EmulatedDevice> {
 protected:
  DevicePullsTest()
      : PullsInPieces(testing::NewTestDevices(1, GetParam(), kBudgetBytes, kPinnedBytes)[0]) {}
};

INSTANTIATE_TEST_SUITE_P(Seeds, DevicePullsTest, ::testing::Values(0, 1));

// There is less pinned memory than the parameter has. So the memory of the first pieces is given
// back, because they are sent, before the last one is copied there.
TEST_P(DevicePullsTest, PiecesAreSentWhileOthersAreCopied) {
  const RRef w = Make("w", "emu:0");
  std::vector<float> elements(static_cast<size_t>(kElements));
  std::iota(elements.begin(), elements.end(), 1.0f);
  Must(trainer_->Assign(w, Tensor::Of({kElements}, elements)));
  const size_t copies = device().copies_added();
  const auto pulled = Must(trainer_->Pull({w}));
  EXPECT_EQ(device().copies_added() - copies, kPieces);
  EXPECT_GT(device().pinned_peak_bytes(), 0u);
  EXPECT_EQ(pulled[0].version, 2u);
  EXPECT_EQ(Elements(pulled[0].elements), elements);
  AwaitNothingHeld(w);
}

TEST_P(DevicePullsTest, ADeviceThatIsLostInTheMiddleEndsThePull) {
  const RRef w = Make("w", "emu:0"), b = Make("b", "cpu");
  ASSERT_TRUE(device().Synchronize().ok());
  device().FailOperation(4);
  const absl::Status lost = trainer_->Pull({w}).status();
  EXPECT_EQ(lost.code(), absl::StatusCode::kUnavailable) << lost;
  EXPECT_THAT(std::string(lost.message()), HasSubstr("emu:0"));
  EXPECT_TRUE(AllAre(2, Read(*trainer_, b)));
  while (!device().pinned_memory().Allocate(kPinnedBytes).ok()) std::this_thread::yield();
}

TEST_P(DevicePullsTest, ATrainerThatLeavesInTheMiddleGivesEverythingBack) {
  const RRef w = Make("w", "emu:0");
  {
    auto other = StartTrainer("other", {host_.owner().address()});
    const RRef same = Must(other->Lookup("owner", "w"));
    const testing::Stall stall(device());
    const Future<Values> pull = other->ToHereAsync({same});
    while (device().scheduler().waiting() == 0) std::this_thread::yield();
    other.reset();
    EXPECT_FALSE(pull.Wait().ok());
  }
  AwaitNothingHeld(w);
}

TEST_P(DevicePullsTest, AFailedPullIsEndedOnTheOwner) {
  const RRef w = Make("w", "emu:0");
  {
    const testing::Stall stall(device());
    CallOptions soon;
    soon.timeout = absl::Milliseconds(200);
    const absl::Status late = trainer_->Pull({w}, soon).status();
    EXPECT_EQ(late.code(), absl::StatusCode::kDeadlineExceeded) << late;
  }
  AwaitNothingHeld(w);
}

}  // namespace
}  // namespace psd
