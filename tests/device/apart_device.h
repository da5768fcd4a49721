#pragma once

// A device for tests whose memory the host cannot read: any access through the addresses that it
// hands out ends the process.

#include <cstddef>
#include <memory>
#include <string>

#include "core/base/device.h"
#include "core/base/mutex.h"

namespace psd::testing {

// One memory file is mapped twice. Addresses are handed out in a mapping without access rights. The
// device's copies and kernels translate them to the other mapping, which they may use. Freed memory
// is poisoned. Work runs at once, on the calling thread.
//
// Its kernels take f32 only. They are StridedCopy, Add, Mul, Neg, Relu, ReluGradient, Sum,
// GatherRows, "Cast" from f32 to f64, and the optimizers "sgd" (without momentum) and "adam"
// (without AMSGrad). Thread-safe.
class ApartDevice : public Device, public std::enable_shared_from_this<ApartDevice> {
 public:
  // `name` is for example "apart:0". The device has `bytes` bytes of memory.
  static std::shared_ptr<ApartDevice> Create(std::string name, size_t bytes = size_t{16} << 20);
  ~ApartDevice() override;

  Allocator& memory() override;
  absl::Status CopyIn(std::byte* to, const std::byte* from, size_t bytes) override;
  absl::Status CopyOut(std::byte* to, const std::byte* from, size_t bytes) override;
  absl::Status CopyWithin(std::byte* to, const std::byte* from, size_t bytes) override;
  absl::Status Synchronize() override;

  // After this call the device is lost: copies and Synchronize fail with UNAVAILABLE.
  void Lose();
  size_t used_bytes() const;
  int kernels_run() const;

  // ---- For kernels.

  // Returns the usable address of `address`.
  std::byte* Inside(const void* address) const;
  // Begins a kernel. The device does no other work until the result is destroyed.
  std::unique_ptr<MutexLock> BeginKernel();

 private:
  class Arena;
  class Memory;

  ApartDevice(std::string name, size_t bytes);
  absl::Status CheckAlive() const;

  Mutex work_;  // held while a copy or kernel runs
  const std::unique_ptr<Arena> arena_;
  const std::unique_ptr<Memory> memory_;
};

}  // namespace psd::testing
