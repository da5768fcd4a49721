// Versions of a parameter on an emulated device, in the order of its streams. The tests run with
// several seeds, which decide in which order the device works; with seed 0 it does only what is
// waited for.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "core/base/buffer.h"
#include "core/base/future.h"
#include "core/base/stream.h"
#include "core/device/emulated/emulated_device.h"
#include "core/store/parameter.h"
#include "core/store/version_set.h"
#include "core/tensor/ops/elementwise.h"
#include "core/tensor/tensor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/core/store/changing_for_tests.h"
#include "tests/core/tensor/compare.h"
#include "tests/device/test_device.h"

namespace psd::store {
namespace {

const Changing kChanging = ChangingForTests::Make();
constexpr int64_t kElements = 64;

Tensor Full(float value) {
  return *Tensor::Full({kElements}, DType::kF32, value);
}

class DeviceVersionsTest : public ::testing::TestWithParam<uint64_t> {
 protected:
  DeviceVersionsTest() { EXPECT_TRUE(parameter_->AcquireForSteps().ok()); }
  ~DeviceVersionsTest() override { parameter_->ReleaseFromSteps(); }

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

  const std::shared_ptr<EmulatedDevice> device_ = testing::NewTestDevice(GetParam());
  Stream& other_ = **device_->AddStream();
  const std::shared_ptr<Parameter> parameter_ = *Parameter::Create(
      {1, 1}, Full(1), /*requires_grad=*/true,
      std::shared_ptr<Allocator>(device_, &device_->memory()), std::make_shared<VersionLock>());
};

INSTANTIATE_TEST_SUITE_P(Seeds, DeviceVersionsTest, ::testing::Range<uint64_t>(0, 6));

TEST_P(DeviceVersionsTest, AReaderOnAnotherStreamSeesWhatIsStillBeingWritten) {
  const std::shared_ptr<Event> written = Step(2);
  if (GetParam() == 0) {
    EXPECT_FALSE(written->passed());
  }
  const StreamScope scope(other_);
  const PinnedVersion pinned = Pin();
  EXPECT_EQ(pinned.version, 2u);
  EXPECT_EQ(pinned.written, written);
  EXPECT_TRUE(ops::Equal(*pinned.tensor.ToHost(), Full(2)));
}

TEST_P(DeviceVersionsTest, ACopyForTheHostSeesWhatIsStillBeingWritten) {
  Step(2);
  const StreamScope scope(other_);
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
    const StreamScope scope(other_);
    result = *ops::Neg(Pin().tensor);
  }
  std::shared_ptr<Event> last;
  for (float value = 2; value < 8; ++value) last = Step(value);  // as many as use each buffer
  EXPECT_TRUE(last->Wait().ok());
  const StreamScope scope(other_);
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
    const StreamScope scope(other_);
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

class PassedEvent : public Event {
 public:
  bool passed() const override { return true; }
  absl::Status Wait() override { return absl::OkStatus(); }
  void OnPassed(absl::AnyInvocable<void(absl::Status) &&> then) override {
    std::move(then)(absl::OkStatus());
  }
};

// A VersionSet is used under the lock that all parameters of a store share, and the last
// reference to an event may be the last one to its device.
TEST(DeviceVersionSetTest, EventsAreFreedByTheCallerAndNotUnderTheLock) {
  const std::shared_ptr<EmulatedDevice> device = testing::NewTestDevice(0);
  const auto buffer = [&] { return VersionBuffer(*device->memory().Allocate(64)); };
  const auto step = [](VersionSet& set, FreedVersions& freed) {
    set.BeginWrite();
    set.Publish(std::make_shared<PassedEvent>(), freed);
  };
  const std::function<void(VersionSet&, FreedVersions&)> ends[] = {
      step,
      [&](VersionSet& set, FreedVersions& freed) { set.Replace(buffer(), freed); },
      [](VersionSet& set, FreedVersions& freed) { set.Close(freed); },
  };
  for (const auto& end : ends) {
    VersionSet set(buffer(), 64);
    set.Acquire();
    set.AddSpare(buffer());
    FreedVersions freed;
    step(set, freed);
    const std::weak_ptr<Event> written = set.written();
    end(set, freed);
    EXPECT_NE(set.written(), written.lock());
    EXPECT_FALSE(written.expired());
    freed = {};
    EXPECT_TRUE(written.expired());
  }
}

TEST(FreedVersionsTest, AnEventThatParametersShareIsKeptOnce) {
  const std::shared_ptr<Event> first = std::make_shared<PassedEvent>();
  const std::shared_ptr<Event> second = std::make_shared<PassedEvent>();
  FreedVersions freed;
  for (const std::shared_ptr<Event>& event : {first, first, second}) freed.Add(event);
  freed.Add(nullptr);
  EXPECT_THAT(freed.events, ::testing::ElementsAre(first, second));
}

TEST_P(DeviceVersionsTest, AVersionOfALostDeviceIsUnavailable) {
  const std::shared_ptr<Event> written = Step(2);
  device_->Lose("it fell off the bus");
  const absl::Status read = parameter_->Pin().status();
  EXPECT_EQ(read.code(), absl::StatusCode::kUnavailable) << read;
  EXPECT_NE(read.message().find("emu:0"), std::string::npos) << read;
  Parameter* const parameter = parameter_.get();
  EXPECT_EQ(Parameter::BeginWrite(kChanging, {&parameter, 1}).status(), read);
  EXPECT_EQ(written->Wait(), read);
}

}  // namespace
}  // namespace psd::store
