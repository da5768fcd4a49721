#pragma once

// An owner with a device whose memory the host cannot read.

#include <memory>
#include <string>
#include <utility>

#include "core/base/memory_budget.h"
#include "core/runtime/runtime.h"
#include "core/store/store.h"
#include "tests/client/test_world.h"
#include "tests/device/apart_device.h"

namespace psd {

// Its device is called "apart:0".
class DeviceOwner {
 public:
  static constexpr size_t kBudgetBytes = size_t{1} << 20;  // of the device

  explicit DeviceOwner(const std::string& name, worker::RuntimeOptions options = {})
      : owner_(name, WithDevice(*this, std::move(options))) {}

  TestOwner& owner() { return owner_; }
  testing::ApartDevice& device() { return *device_; }
  MemoryAccount& memory() { return *memory_; }

 private:
  static worker::RuntimeOptions WithDevice(DeviceOwner& self, worker::RuntimeOptions options) {
    options.devices.push_back({self.device_, self.memory_});
    return options;
  }

  const std::shared_ptr<testing::ApartDevice> device_ = testing::ApartDevice::Create("apart:0");
  const std::shared_ptr<MemoryAccount> memory_ =
      MemoryAccount::Create(kBudgetBytes, std::shared_ptr<Allocator>(device_, &device_->memory()));
  TestOwner owner_;
};

}  // namespace psd
