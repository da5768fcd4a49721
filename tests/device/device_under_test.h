#pragma once

// The kind of device of tests that run on emulated devices and on GPUs. A test links one of these
// definitions: emulated_under_test.cc or gpu_under_test.cc.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "core/base/device.h"
#include "gtest/gtest.h"

namespace psd::testing {

// "emu:0" or "cuda:0".
std::string NameOfDevice();

// "" or one sentence that says why this machine has no such device.
std::string WhyNoDevice();

struct DeviceUnderTestOptions {
  size_t budget_bytes = size_t{1} << 20;  // a GPU takes at least kGpuBudgetBytes
  size_t pinned_bytes = size_t{16} << 20;
  uint64_t seed = 0;  // decides the order of an emulated device's work
  // Whether workers and processes may read each other's memory of such devices.
  bool shareable = false;
};

// GPUs take memory in units of MiB, which a smaller budget would not fill.
inline constexpr size_t kGpuBudgetBytes = size_t{64} << 20;

// Returns a device with all kernels, or null if this machine has none.
std::shared_ptr<Device> OpenDeviceUnderTest(const DeviceUnderTestOptions& options);

// How many kernels the device has been given. Empty for a GPU, which does not count them.
std::optional<size_t> KernelsGiven(const Device& device);
// The same of copies, in all directions.
std::optional<size_t> CopiesGiven(const Device& device);

// Whether a device with this seed does only what is waited for, as an emulated device with seed 0.
bool IsLazy(uint64_t seed);

// Whether the logarithms, sines and the like of the device have the bits of the CPU's. GPUs have
// functions of their own.
bool HasFunctionsOfCpu();

// Counts the kernels that a device is given from now on. Must not outlive it.
class NewKernels {
 public:
  explicit NewKernels(const Device& device) : device_(device), before_(KernelsGiven(device)) {}

  // Expects that there was one, if the device counts them.
  void ExpectSome() const {
    if (!before_.has_value()) return;
    EXPECT_GT(*KernelsGiven(device_), *before_);
  }

 private:
  const Device& device_;
  const std::optional<size_t> before_;
};

// A fixture whose tests are skipped without a device. `Test` is one of gtest's.
template <typename Test>
class OnDevice : public Test {
 protected:
  using Test::Test;

  void SetUp() override {
    if (const std::string why = WhyNoDevice(); !why.empty()) GTEST_SKIP() << why;
  }
};

}  // namespace psd::testing
