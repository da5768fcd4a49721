// The devices that a daemon opens on a machine without a GPU, in builds with and without CUDA.

#include "server/daemon/devices.h"

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/device.h"
#include "core/base/status.h"
#include "core/tensor/dtype.h"
#include "core/tensor/ops/elementwise.h"
#include "core/tensor/tensor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/daemon/config.h"
#include "tests/core/tensor/compare.h"

namespace psd::server {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using Devices = std::vector<std::shared_ptr<Device>>;

constexpr size_t kBudgetBytes = size_t{1} << 20;
const DeviceConfig kEmulated{DeviceConfig::Kind::kEmulated, 0, kBudgetBytes};
const DeviceConfig kGpu{DeviceConfig::Kind::kCuda, 0, kBudgetBytes};

class DevicesTest : public ::testing::Test {
 protected:
  // Where there is a driver, CUDA shows no GPU either.
  DevicesTest() { setenv("CUDA_VISIBLE_DEVICES", "-1", 1); }
};

TEST_F(DevicesTest, AGpuThatCannotBeOpenedNamesWhatIsMissing) {
  const absl::Status refused = OpenDevices({kEmulated, kGpu}).status();
  const std::string message(refused.message());
#ifdef PSD_CUDA
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << refused;
  EXPECT_THAT(message, ::testing::AnyOf(
                           HasSubstr("cuda:0 cannot be opened: this machine has no NVIDIA driver; "
                                     "install a driver for CUDA"),
                           HasSubstr("cuda:0 cannot be opened: the NVIDIA driver "),
                           HasSubstr("cuda:0 cannot be opened: the GPUs cannot be counted")));
#else
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnimplemented) << refused;
  EXPECT_EQ(
      message,
      "cuda:0 cannot be opened, because this psd was built without CUDA devices; leave cuda:0 "
      "out of 'devices'");
#endif
  ASSERT_TRUE(GetDetail(refused).has_value());
  EXPECT_THAT(GetDetail(refused)->remedy, Not(IsEmpty()));
}

// Also behind a GPU that could not be opened.
TEST_F(DevicesTest, TheCpuAndEmulatedDevicesNeedNoGpu) {
  EXPECT_FALSE(OpenDevices({kGpu}).ok());
  const absl::StatusOr<Devices> none = OpenDevices({});
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_THAT(*none, IsEmpty());
  const Tensor three = *Tensor::Full({5}, DType::kF32, 3);
  const absl::StatusOr<Tensor> sum = ops::Add(three, three);
  ASSERT_TRUE(sum.ok()) << sum.status();
  EXPECT_TRUE(ops::Equal(*sum, *Tensor::Full({5}, DType::kF32, 6)));

  const absl::StatusOr<Devices> opened = OpenDevices({kEmulated});
  ASSERT_TRUE(opened.ok()) << opened.status();
  ASSERT_EQ(opened->size(), 1u);
  EXPECT_EQ((*opened)[0]->name(), "emu:0");
  const absl::StatusOr<Tensor> there = three.Clone(&(*opened)[0]->memory());
  ASSERT_TRUE(there.ok()) << there.status();
  const absl::StatusOr<Tensor> sum_there = ops::Add(*there, *there);
  ASSERT_TRUE(sum_there.ok()) << sum_there.status();
  EXPECT_EQ(sum_there->device(), (*opened)[0].get());
  EXPECT_TRUE(ops::Equal(*sum_there->ToHost(), *sum));
}

}  // namespace
}  // namespace psd::server
