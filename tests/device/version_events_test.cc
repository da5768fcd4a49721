// The events behind which versions of a parameter are written: who keeps them, and what they say
// when their device is lost.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "core/base/buffer.h"
#include "core/base/stream.h"
#include "core/device/emulated/emulated_device.h"
#include "core/store/parameter.h"
#include "core/store/version_set.h"
#include "core/tensor/tensor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/core/store/changing_for_tests.h"
#include "tests/device/test_device.h"

namespace psd::store {
namespace {

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

TEST(LostVersionTest, AVersionOfALostDeviceIsUnavailable) {
  const Changing changing = ChangingForTests::Make();
  for (uint64_t seed = 0; seed < 6; ++seed) {
    SCOPED_TRACE(seed);
    const std::shared_ptr<EmulatedDevice> device = testing::NewTestDevice(seed);
    const Tensor ones = *Tensor::Full({64}, DType::kF32, 1);
    const std::shared_ptr<Parameter> owned = *Parameter::Create(
        {1, 1}, ones, /*requires_grad=*/true, std::shared_ptr<Allocator>(device, &device->memory()),
        std::make_shared<VersionLock>());
    Parameter* const parameter = owned.get();
    ASSERT_TRUE(parameter->AcquireForSteps().ok());
    const auto writes = Parameter::BeginWrite(changing, {&parameter, 1});
    ASSERT_TRUE(writes.ok()) << writes.status();
    const Tensor twos = *Tensor::Full({64}, DType::kF32, 2)->Clone(&device->memory());
    Stream& stream = device->default_stream();
    ASSERT_TRUE(
        stream.CopyFrom(writes->front().spare, *device, twos.address(), twos.NumBytes()).ok());
    const std::shared_ptr<Event> written = *stream.Record();
    Parameter::Publish(changing, {&parameter, 1}, written);
    device->Lose("it fell off the bus");
    const absl::Status read = parameter->Pin().status();
    EXPECT_EQ(read.code(), absl::StatusCode::kUnavailable) << read;
    EXPECT_NE(read.message().find("emu:0"), std::string::npos) << read;
    EXPECT_EQ(Parameter::BeginWrite(changing, {&parameter, 1}).status(), read);
    EXPECT_EQ(written->Wait(), read);
    parameter->ReleaseFromSteps();
  }
}

}  // namespace
}  // namespace psd::store
