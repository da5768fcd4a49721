#include "bench/gpu/on_device.h"

#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "core/device/emulated/emulated_device.h"
#include "core/tensor/tensor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/device/test_device.h"

namespace psd::bench {
namespace {

using ::testing::HasSubstr;

TEST(CheckNear, NamesTheFirstDifference) {
  EXPECT_TRUE(CheckNear("x", {1, 1000}, {1.000005f, 1000.005f}).ok());
  const absl::Status differs = CheckNear("the sum", {1, 2, 3}, {1, 2.1f, 4});
  EXPECT_EQ(differs.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(differs.message()), HasSubstr("the sum has 2 at 1 instead of 2.1"));
}

TEST(CheckNear, NansAndMissingElementsAreDifferences) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_FALSE(CheckNear("x", {nan}, {1}).ok());
  EXPECT_FALSE(CheckNear("x", {1}, {nan}).ok());
  EXPECT_FALSE(CheckNear("x", {1}, {1, 2}).ok());
}

TEST(Pattern, IsTheSameOnTheHostAndOnADevice) {
  const std::shared_ptr<EmulatedDevice> device = testing::NewTestDevice(/*seed=*/0);
  const Tensor there = Pattern(device.get(), {30, 20}, 2).value();
  const Tensor here = Pattern(nullptr, {30, 20}, 2).value();
  EXPECT_EQ(there.device(), device.get());
  EXPECT_EQ(here.data<float>()[kPatternPeriod + 7], 2 * PatternAt(7));
  EXPECT_EQ(ReadFloats(there, 500, 100).value(), ReadFloats(here, 500, 100).value());
}

TEST(TimeOnDevice, CountsOperationsAndWaitsForThem) {
  const std::shared_ptr<EmulatedDevice> device = testing::NewTestDevice(/*seed=*/0);
  auto floor = CopyFloor::Create(*device, 6000);
  ASSERT_TRUE(floor.ok()) << floor.status();
  const size_t before = device->copies_added();
  ASSERT_TRUE(TimeOnDevice(*device, 3, [&] { return floor->Add(); }).ok());
  EXPECT_EQ(device->copies_added(), before + 3);
  device->FailOperation(1);
  const absl::Status failed = TimeOnDevice(*device, 1, [&] { return floor->Add(); }).status();
  EXPECT_EQ(failed.code(), absl::StatusCode::kUnavailable) << failed;
}

TEST(Devices, OnlyEmulatedOnesAreTiny) {
  const std::shared_ptr<EmulatedDevice> device = testing::NewTestDevice(/*seed=*/0);
  EXPECT_EQ(SizeOn(*device, 1000, 3), 3);
}

}  // namespace
}  // namespace psd::bench
