#pragma once

// A device with memory and kernels of its own.

#include <cstddef>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/base/buffer.h"
#include "core/base/kernel_table.h"
#include "core/base/memory_place.h"

namespace psd {

// The name of the host's own processor and memory. Wherever code holds a `Device*`, null stands for
// the host, whose memory is read and written directly.
inline constexpr char kCpuName[] = "cpu";

// A device does its work in the order of submission, whichever thread submits it: a copy or kernel
// sees all that was submitted before it and nothing that is submitted later. CopyOut returns when
// its bytes have arrived; all other work may still be under way when the call returns. Thread-safe.
// A device must outlive its blocks, which keep it alive.
class Device {
 public:
  virtual ~Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  // For example "cuda:0". No two devices of a worker have the same name.
  const std::string& name() const { return name_; }
  // Kernels get addresses in this device's memory only.
  const KernelTable& kernels() const { return kernels_; }

  // Allocates blocks whose place is this device. Operators on this device allocate their results
  // here. A block may be freed while work that uses it is under way: only later work reuses its
  // memory.
  virtual Allocator& memory() = 0;

  // Copy `bytes` bytes from the host, to the host, and within the device's memory. When CopyIn
  // returns, the host's bytes may be changed or freed. The ranges must not overlap. Errors:
  // UNAVAILABLE naming the device if it is lost.
  virtual absl::Status CopyIn(std::byte* to, const std::byte* from, size_t bytes) = 0;
  virtual absl::Status CopyOut(std::byte* to, const std::byte* from, size_t bytes) = 0;
  virtual absl::Status CopyWithin(std::byte* to, const std::byte* from, size_t bytes) = 0;

  // Waits until all work submitted so far is done. Returns the error of the first work that failed.
  virtual absl::Status Synchronize() = 0;

 protected:
  Device(std::string name, KernelTable kernels)
      : name_(std::move(name)), kernels_(std::move(kernels)) {}

 private:
  const std::string name_;
  const KernelTable kernels_;
};

// Returns the name of `device`; "cpu" if it is null.
absl::string_view DeviceName(const Device* device);

// Copies `bytes` bytes from the memory of `from_device` to that of `to_device`. A null device means
// the host. Copies between two devices go through the host. Errors: those of the devices;
// RESOURCE_EXHAUSTED if a copy between devices finds no memory.
absl::Status CopyBytes(Device* to_device, std::byte* to, Device* from_device, const std::byte* from,
                       size_t bytes);

// Returns an UNIMPLEMENTED error that names the operation and `device`, which does not have it.
absl::Status NotOnDevice(absl::string_view operation, const Device* device);
// Returns an INVALID_ARGUMENT error that names the operation and the two devices whose memory it
// was given.
absl::Status MixedDevices(absl::string_view operation, const Device* a, const Device* b);

// Returns the kernel called `name` of `device`, which is not the host.
// Errors: UNIMPLEMENTED naming the kernel and the device.
template <typename Signature>
absl::StatusOr<Signature*> KernelOf(const KernelName<Signature>& name, const Device& device) {
  Signature* const kernel = device.kernels().Find(name);
  if (kernel != nullptr) return kernel;
  return NotOnDevice(name.name, &device);
}

}  // namespace psd
