// Versions of a parameter on a device, in the order of its streams. The tests run with several
// seeds, which decide in which order an emulated device works.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "core/base/buffer.h"
#include "core/base/device.h"
#include "core/base/future.h"
#include "core/base/stream.h"
#include "core/store/parameter.h"
#include "core/tensor/ops/elementwise.h"
#include "core/tensor/tensor.h"
#include "gtest/gtest.h"
#include "tests/core/store/changing_for_tests.h"
#include "tests/core/tensor/compare.h"
#include "tests/device/device_under_test.h"

namespace psd::store {
namespace {

const Changing kChanging = ChangingForTests::Make();
constexpr int64_t kElements = 64;

Tensor Full(float value) {
  return *Tensor::Full({kElements}, DType::kF32, value);
}

class DeviceVersionsTest : public testing::OnDevice<::testing::TestWithParam<uint64_t>> {
 protected:
  void SetUp() override {
    OnDevice::SetUp();
    if (IsSkipped()) return;
    other_ = *device_->AddStream();
    parameter_ = *Parameter::Create({1, 1}, Full(1), /*requires_grad=*/true,
                                    std::shared_ptr<Allocator>(device_, &device_->memory()),
                                    std::make_shared<VersionLock>());
    EXPECT_TRUE(parameter_->AcquireForSteps().ok());
  }
  void TearDown() override {
    if (parameter_ != nullptr) parameter_->ReleaseFromSteps();
  }

  // Publishes a version that the device fills with `value` later. Returns the event behind that.
  std::shared_ptr<Event> Step(float value) {
    Parameter* const parameter = parameter_.get();
    const auto writes = Parameter::BeginWrite(kChanging, {&parameter, 1});
    EXPECT_TRUE(writes.ok()) << writes.status();
    const Tensor elements = *Full(value).Clone(&device_->memory());
    Stream& stream = device_->default_stream();
    EXPECT_TRUE(
        stream.CopyFrom(writes->front().spare, *device_, elements.address(), elements.NumBytes())
            .ok());
    auto written = *stream.Record();
    Parameter::Publish(kChanging, {&parameter, 1}, written);
    return written;
  }
  PinnedVersion Pin() {
    auto pinned = parameter_->Pin();
    EXPECT_TRUE(pinned.ok()) << pinned.status();
    return *std::move(pinned);
  }

  static testing::DeviceUnderTestOptions Options() {
    testing::DeviceUnderTestOptions options;
    options.seed = GetParam();
    return options;
  }

  const std::shared_ptr<Device> device_ = testing::OpenDeviceUnderTest(Options());
  Stream* other_ = nullptr;
  std::shared_ptr<Parameter> parameter_;
};

INSTANTIATE_TEST_SUITE_P(Orders, DeviceVersionsTest, ::testing::Range<uint64_t>(0, 6));

TEST_P(DeviceVersionsTest, AReaderOnAnotherStreamSeesWhatIsStillBeingWritten) {
  const std::shared_ptr<Event> written = Step(2);
  if (testing::IsLazy(GetParam())) {
    EXPECT_FALSE(written->passed());
  }
  const StreamScope scope(*other_);
  const PinnedVersion pinned = Pin();
  EXPECT_EQ(pinned.version, 2u);
  EXPECT_EQ(pinned.written, written);
  EXPECT_TRUE(ops::Equal(*pinned.tensor.ToHost(), Full(2)));
}

TEST_P(DeviceVersionsTest, ACopyForTheHostSeesWhatIsStillBeingWritten) {
  Step(2);
  const StreamScope scope(*other_);
  Parameter* const parameter = parameter_.get();
  const auto pinned = Parameter::PinTogether({&parameter, 1}, parameter_);
  ASSERT_TRUE(pinned.ok()) << pinned.status();
  const auto* const elements = reinterpret_cast<const float*>(pinned->tensors[0].data);
  EXPECT_EQ(std::vector<float>(elements, elements + kElements), std::vector<float>(kElements, 2));
}

TEST_P(DeviceVersionsTest, AStepReadsWhatTheStepBeforeItIsStillWriting) {
  Step(2);
  Parameter* const parameter = parameter_.get();
  const auto writes = *Parameter::BeginWrite(kChanging, {&parameter, 1});
  Stream& stream = device_->default_stream();
  ASSERT_TRUE(
      stream.CopyFrom(writes[0].spare, *device_, writes[0].current, kElements * sizeof(float))
          .ok());
  const std::shared_ptr<Event> written = *stream.Record();
  Parameter::Publish(kChanging, {&parameter, 1}, written);
  EXPECT_TRUE(ops::Equal(*Pin().tensor.ToHost(), Full(2)));
}

TEST_P(DeviceVersionsTest, ABufferIsWrittenAgainBehindItsReaders) {
  Tensor result;
  {
    const StreamScope scope(*other_);
    result = *ops::Neg(Pin().tensor);
  }
  std::shared_ptr<Event> last;
  for (float value = 2; value < 8; ++value) last = Step(value);  // as many as use each buffer
  EXPECT_TRUE(last->Wait().ok());
  const StreamScope scope(*other_);
  EXPECT_TRUE(ops::Equal(*result.ToHost(), Full(-1)));
}

TEST_P(DeviceVersionsTest, AVersionThatIsCopiedIsWrittenAgainBehindItsCopy) {
  std::vector<PinnedVersion> old;
  for (int i = 0; i < kMaxOldPinned; ++i) {
    old.push_back(Pin());
    Step(static_cast<float>(i + 2));
  }
  PinnedVersion copy;
  {
    const StreamScope scope(*other_);
    copy = Pin();
    EXPECT_EQ(parameter_->stats().copies, 1);
  }
  std::shared_ptr<Event> last;
  for (float value = 10; value < 16; ++value) last = Step(value);
  EXPECT_TRUE(last->Wait().ok());
  ASSERT_TRUE(device_->default_stream().WaitFor(copy.written).ok());
  ASSERT_TRUE(device_->default_stream().AlsoUses(*copy.tensor.block()).ok());
  EXPECT_TRUE(ops::Equal(*copy.tensor.ToHost(), Full(kMaxOldPinned + 1)));
  EXPECT_TRUE(ops::Equal(*old[0].tensor.ToHost(), Full(1)));
  EXPECT_TRUE(ops::Equal(*old[1].tensor.ToHost(), Full(2)));
}

TEST_P(DeviceVersionsTest, AReaderOnTheHostAsksForACompletion) {
  Step(2);
  const PinnedVersion pinned = Pin();
  Promise<bool> passed;
  pinned.written->OnPassed([&](absl::Status status) { passed.Set(status.ok()); });
  EXPECT_TRUE(*passed.future().Wait());
  EXPECT_TRUE(ops::Equal(*pinned.tensor.ToHost(), Full(2)));
}

}  // namespace
}  // namespace psd::store
