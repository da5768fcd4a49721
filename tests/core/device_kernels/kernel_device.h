#pragma once

// The kind of device whose kernels a test compares with those of the CPU. The test links one of
// these definitions: emulated_kernel_device.cc; cuda/gpu_kernel_device.cc for a GPU; and for matrix
// products alone cuda/fake_kernel_device.cc.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "core/base/device.h"
#include "core/base/kernel_table.h"
#include "gtest/gtest.h"

namespace psd::testing {

KernelTable DeviceOperators();
KernelTable DeviceOptimizers();
KernelTable DeviceRowKernels();

// Returns a device with these kernels, or null if this machine has no GPU. `seed` decides the order
// of an emulated device's work.
std::shared_ptr<Device> NewKernelDevice(KernelTable kernels, uint64_t seed);

// The parameter is the seed. Without a device, the tests are skipped.
class KernelDeviceTest : public ::testing::TestWithParam<uint64_t> {
 protected:
  explicit KernelDeviceTest(KernelTable kernels)
      : device_(NewKernelDevice(std::move(kernels), GetParam())) {}
  void SetUp() override {
    if (device_ == nullptr) GTEST_SKIP() << "this machine has no GPU";
  }

  const std::shared_ptr<Device> device_;
};

// How many kernels have been added to the device. 0 for a GPU, which does not count them.
size_t KernelsLaunched(const Device& device);

}  // namespace psd::testing
