#pragma once

// Memory of a device that processes of one host share.

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/base/buffer.h"
#include "core/base/unique_fd.h"

namespace psd {

// Memory of a device that another process has allocated and shows to this one. It lives until its
// last block has been freed. Thread-safe.
class PeerDeviceMemory {
 public:
  virtual ~PeerDeviceMemory() = default;
  PeerDeviceMemory(const PeerDeviceMemory&) = delete;
  PeerDeviceMemory& operator=(const PeerDeviceMemory&) = delete;

  // Maps the block of `bytes` bytes that the other process calls `handle` (DeviceSharing::Export).
  // Its place is the device of this process, and it counts in no budget. It must be read only. The
  // CurrentStream of the thread counts as its user, as if it had been allocated there. A block may
  // be imported again while it is mapped.
  // After the block has been destroyed, and its users have done the work that they had then
  // (Stream::AlsoUses) or the device was lost, it is unmapped unless it was imported again. Then
  // `released` is called once, on any thread without a lock. It does not wait for a device. If an
  // error is returned, `released` is not called. Errors:
  // INVALID_ARGUMENT naming the device if the handle cannot be one of `bytes` bytes of this memory;
  // RESOURCE_EXHAUSTED if the system refuses; UNAVAILABLE if the device is lost.
  virtual absl::StatusOr<std::shared_ptr<Block>> Import(absl::string_view handle, size_t bytes,
                                                        std::function<void()> released) = 0;

 protected:
  PeerDeviceMemory() = default;
};

// The sharing half of a device. Thread-safe.
//
// A process that imports memory can also write to it: only processes that trust each other share a
// device. What orders the work of two processes is the host: an exporter names a block to another
// process after the event behind its last write has passed, and writes to it or frees it only after
// the other process has said that the block was released, or has ended.
class DeviceSharing {
 public:
  virtual ~DeviceSharing() = default;
  DeviceSharing(const DeviceSharing&) = delete;
  DeviceSharing& operator=(const DeviceSharing&) = delete;

  // Two devices of two processes on one host are the same hardware if they have equal identities.
  virtual const std::string& identity() const = 0;
  // Whether other processes may import this device's blocks. Any device can import.
  virtual bool exports() const = 0;

  // Returns a descriptor to be passed to another process, which opens this device's memory with it.
  // Requires: exports(). Errors: RESOURCE_EXHAUSTED if the process has no descriptor left; those of
  // a lost device.
  virtual absl::StatusOr<UniqueFd> Descriptor() = 0;
  // Returns what names `block`, one of this device's own memory, to processes that have opened it:
  // at most kMostHandleBytes. It names it until the block is freed.
  // Requires: exports(). Errors: UNIMPLEMENTED for a block that was imported; those of a lost
  // device.
  virtual absl::StatusOr<std::string> Export(const Block& block) = 0;
  static constexpr size_t kMostHandleBytes = 128;

  // Opens the memory of another process's device of the same identity.
  // Errors: INVALID_ARGUMENT naming the device if the descriptor does not belong to such memory;
  // RESOURCE_EXHAUSTED; those of a lost device.
  virtual absl::StatusOr<std::shared_ptr<PeerDeviceMemory>> Open(UniqueFd descriptor) = 0;

 protected:
  DeviceSharing() = default;
};

}  // namespace psd
