#pragma once

// A device with memory, streams and kernels of its own.

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

class DeviceCollectives;  // core/base/device_collectives.h
class DeviceSharing;      // core/base/device_sharing.h
class Stream;             // core/base/stream.h

// The name of the host's own processor and memory. Wherever code holds a `Device*`, null stands for
// the host, whose memory is read and written directly.
inline constexpr char kCpuName[] = "cpu";
// Stands for the name of a device that a worker chooses for a new value (store::Store::FindDevice).
inline constexpr char kAutoDevice[] = "auto";

// A device works asynchronously: work is added to its streams (core/base/stream.h). Thread-safe. A
// device must outlive its blocks, which keep it alive.
//
// A thread of a pool that waits for a device is inside a ScopedBlocking (core/base/executor.h), so
// the pool goes on with other tasks.
//
// When work fails while it runs, the device is lost: all work that is not done then is not done
// any more, its events pass with an error, and new work is refused. Blocks of a lost device may be
// destroyed like others.
class Device {
 public:
  virtual ~Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  // For example "cuda:0". No two devices of a worker have the same name.
  const std::string& name() const { return name_; }
  // Kernels get addresses in this device's memory only.
  const KernelTable& kernels() const { return kernels_; }

  virtual Stream& default_stream() = 0;
  // Adds a stream, which lives as long as the device. Errors: RESOURCE_EXHAUSTED if the device has
  // kMaxStreams.
  virtual absl::StatusOr<Stream*> AddStream() = 0;

  // Allocates blocks whose place is this device, on the CurrentStream of the thread. Operators on
  // this device allocate their results here. A block may be freed while work of its stream that
  // uses it is under way: only later work reuses its memory.
  virtual Allocator& memory() = 0;
  // Allocates host memory for the copies of streams, within a budget of its own.
  // Errors: RESOURCE_EXHAUSTED naming the device, the need, the budget and the use.
  virtual Allocator& pinned_memory() = 0;
  // The bytes that all blocks of the device may have together, and those that they have. A block
  // counts from its allocation until it is destroyed.
  virtual size_t budget_bytes() const = 0;
  virtual size_t used_bytes() const = 0;

  // Copy `bytes` bytes from the host, to the host, and within the device's memory, as work of the
  // CurrentStream of the thread. The host's bytes may be in any memory. Copies from and to the host
  // are done when this returns. The ranges must not overlap.
  // Errors: UNAVAILABLE naming the device if it is lost.
  virtual absl::Status CopyIn(std::byte* to, const std::byte* from, size_t bytes) = 0;
  virtual absl::Status CopyOut(std::byte* to, const std::byte* from, size_t bytes) = 0;
  virtual absl::Status CopyWithin(std::byte* to, const std::byte* from, size_t bytes) = 0;

  // Collective operations with devices of other workers. Null if this kind of device has none.
  virtual DeviceCollectives* collectives() { return nullptr; }
  // Memory of this device that other processes of the host read. Null if the device shares none.
  virtual DeviceSharing* sharing() { return nullptr; }

  // Waits until all work that was added to any stream so far is done. Returns the error of the
  // first work that failed.
  virtual absl::Status Synchronize() = 0;
  // Returns OK, or for a lost device UNAVAILABLE naming it and the reason.
  virtual absl::Status health() const = 0;
  // Makes the device lost, for whoever has added work and can neither take it back nor find out how
  // it ends. `reason` appears in errors. Does nothing if the device is lost already.
  virtual void Lose(absl::string_view reason) = 0;

 protected:
  Device(std::string name, KernelTable kernels)
      : name_(std::move(name)), kernels_(std::move(kernels)) {}

 private:
  const std::string name_;
  const KernelTable kernels_;
};

// The most streams of one device.
inline constexpr size_t kMaxStreams = 32;

// Returns the name of `device`; "cpu" if it is null.
absl::string_view DeviceName(const Device* device);

// Copies `bytes` bytes from the memory of `from_device` to that of `to_device`. A null device means
// the host. A copy within a device is work of the thread's CurrentStream there; all others are done
// when this returns. Copies between devices of different kinds go through memory of the host.
// Errors: those of the devices; RESOURCE_EXHAUSTED if there is none of this memory.
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
