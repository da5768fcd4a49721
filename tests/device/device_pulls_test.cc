// A large parameter on a device comes to a trainer in pieces, through little pinned memory.

#include <algorithm>
#include <cstddef>
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
#include "core/services/values/value_methods.h"
#include "core/store/parameter.h"
#include "core/store/store.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/test_world.h"
#include "tests/device/device_owner.h"
#include "tests/device/stall.h"
#include "tests/device/test_device.h"

namespace psd {
namespace {

using services::kPieceBytes;
using services::kPiecesUnderWay;
using ::testing::HasSubstr;

// Each parameter has eight pieces and a short one.
constexpr size_t kPieces = 9;
constexpr auto kElements = static_cast<int64_t>(8 * kPieceBytes / sizeof(float) + 3);
constexpr size_t kPinnedBytes = 6 * kPieceBytes;

// Compares millions of elements without gmock, which would take seconds.
bool AllAre(float element, const std::vector<float>& elements) {
  return std::all_of(elements.begin(), elements.end(),
                     [element](float each) { return each == element; });
}

std::vector<float> ElementsOf(const Value& value) {
  return Elements(value.As<Variable>()->tensor());
}

class DevicePullsTest : public ::testing::TestWithParam<uint64_t> {
 protected:
  static std::shared_ptr<EmulatedDevice> NewDevice() {
    return testing::NewTestDevices(1, GetParam(), size_t{64} << 20, kPinnedBytes)[0];
  }
  EmulatedDevice& device() { return host_.device(); }
  RRef Make(const std::string& name, const std::string& device, double element = 2) {
    CreateOptions options;
    options.requires_grad = true;
    options.device = device;
    return Must(trainer_->GetOrCreate("owner", name, Full({kElements}, element), options));
  }
  // Waits until nobody has pinned memory, and no version is pinned.
  void AwaitNothingHeld(const RRef& parameter) {
    const store::EntryPtr entry = Must(host_.owner().runtime().store().Get(parameter.value_id()));
    while (!device().pinned_memory().Allocate(kPinnedBytes).ok()) std::this_thread::yield();
    // A pinned version becomes an old one, until it is released.
    Must(trainer_->Assign(parameter, Must(Tensor::Full({kElements}, DType::kF32, 5))));
    while (entry->parameter->stats().old_pinned > 0) std::this_thread::yield();
  }

  DeviceOwner host_{"owner", NewDevice()};
  std::unique_ptr<Worker> trainer_ = StartTrainer("trainer", {host_.owner().address()});
};

INSTANTIATE_TEST_SUITE_P(Seeds, DevicePullsTest, ::testing::Values(0, 1));

// All pieces are copied to pinned memory, which is less than the parameter. So the memory of the
// first ones has been given back, because they were sent, before the last one was copied.
TEST_P(DevicePullsTest, PiecesAreSentWhileOthersAreCopied) {
  const RRef w = Make("w", "emu:0");
  std::vector<float> elements(static_cast<size_t>(kElements));
  std::iota(elements.begin(), elements.end(), 1.0f);
  Must(trainer_->Assign(w, Tensor::Of({kElements}, elements)));
  const size_t copies = device().copies_added();
  const auto pulled = Must(trainer_->Pull({w}));
  EXPECT_EQ(device().copies_added() - copies, kPieces);
  // An answer may still hold its piece when the caller, which has received it, asks for the next.
  EXPECT_LE(device().pinned_peak_bytes(), 2 * kPiecesUnderWay * kPieceBytes);
  EXPECT_GT(device().pinned_peak_bytes(), 0u);
  EXPECT_EQ(pulled[0].version, 2u);
  EXPECT_EQ(Elements(pulled[0].elements), elements);
  AwaitNothingHeld(w);
}

TEST_P(DevicePullsTest, SmallLargeAndHostParametersComeTogether) {
  const RRef large = Make("large", "emu:0", 1), second = Make("second", "emu:0", 2),
             on_cpu = Make("cpu", "cpu", 3);
  CreateOptions there;
  there.device = "emu:0";
  const RRef small = Must(trainer_->GetOrCreate("owner", "small", Full({4}, 4), there));
  const Values values = Must(trainer_->ToHere({small, large, on_cpu, second}));
  EXPECT_TRUE(AllAre(4, ElementsOf(values[0])));
  EXPECT_TRUE(AllAre(1, ElementsOf(values[1])));
  EXPECT_TRUE(AllAre(3, ElementsOf(values[2])));
  EXPECT_TRUE(AllAre(2, ElementsOf(values[3])));
  const auto later = trainer_->ToHereAsync({large});
  EXPECT_TRUE(AllAre(1, ElementsOf(Must(later.Wait())[0])));
}

TEST_P(DevicePullsTest, GradientsOfWhatCameInPiecesAreStepped) {
  const RRef w = Make("w", "emu:0");
  auto optimizer = Must(DistributedOptimizer::Create(*trainer_, Sgd{0.5}, {w}));
  Context context = Must(trainer_->NewContext());
  const Variable here = Must(trainer_->ToHere({w}, context))[0];
  ASSERT_TRUE(context.Backward({Sum(here)}).ok());
  ASSERT_TRUE(optimizer->Step(context).ok());
  EXPECT_TRUE(AllAre(1.5f, Read(*trainer_, w)));
}

// A version that is pulled does not change, however many steps are applied meanwhile.
TEST_P(DevicePullsTest, AVersionIsPulledAsAWhole) {
  const RRef w = Make("w", "emu:0");
  std::vector<Future<Values>> pulls;
  for (int i = 1; i <= 4; ++i) {
    pulls.push_back(trainer_->ToHereAsync({w}));
    Must(trainer_->Assign(w, Must(Tensor::Full({kElements}, DType::kF32, 10.0 * i))));
  }
  for (const Future<Values>& pull : pulls) {
    const std::vector<float> elements = ElementsOf(Must(pull.Wait())[0]);
    EXPECT_TRUE(AllAre(elements[0], elements));
  }
  pulls.clear();
  AwaitNothingHeld(w);
}

// With less pinned memory than a piece needs, pieces go through other memory.
TEST_P(DevicePullsTest, APullNeedsNoPinnedMemory) {
  const RRef w = Make("w", "emu:0");
  for (const size_t room : {size_t{0}, kPieceBytes, kPieceBytes / 2}) {
    const auto taken = Must(device().pinned_memory().Allocate(kPinnedBytes - room));
    EXPECT_TRUE(AllAre(2, Read(*trainer_, w))) << room;
  }
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
