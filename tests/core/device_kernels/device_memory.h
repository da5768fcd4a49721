#pragma once

// Arrays in the memory of a device.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "core/base/buffer.h"
#include "core/base/device.h"
#include "core/base/kernel_table.h"
#include "core/device/emulated/emulated_device.h"
#include "gtest/gtest.h"

namespace psd::testing {

// Returns an emulated device with these kernels. `seed` decides the order of its work.
inline std::shared_ptr<EmulatedDevice> DeviceWith(KernelTable kernels, uint64_t seed) {
  EmulatedDeviceOptions options;
  options.seed = seed;
  options.kernels = std::move(kernels);
  return EmulatedDevice::Create(1, options).value()[0];
}

// A copy of `elements`, from index `skew` of a block on, whose first element is aligned.
template <typename T>
class DeviceCopy {
 public:
  DeviceCopy(Device& device, const std::vector<T>& elements, size_t skew = 0)
      : device_(device), size_(elements.size()), skew_(skew) {
    // Throws if a GPU was lost, so that the test fails with its name, and the process goes on.
    block_ = device.memory().Allocate((size_ + skew) * sizeof(T)).value();
    const auto copied =
        device.CopyIn(reinterpret_cast<std::byte*>(data()),
                      reinterpret_cast<const std::byte*>(elements.data()), size_ * sizeof(T));
    EXPECT_TRUE(copied.ok()) << copied;
  }
  T* data() const { return reinterpret_cast<T*>(block_->data()) + skew_; }
  std::byte* bytes() const { return reinterpret_cast<std::byte*>(data()); }
  // Waits for the device.
  std::vector<T> Read() const {
    std::vector<T> elements(size_);
    const auto copied =
        device_.CopyOut(reinterpret_cast<std::byte*>(elements.data()), bytes(), size_ * sizeof(T));
    EXPECT_TRUE(copied.ok()) << copied;
    return elements;
  }

 private:
  Device& device_;
  size_t size_;
  size_t skew_;
  std::shared_ptr<Block> block_;
};

}  // namespace psd::testing
