#pragma once

// Devices that work asynchronously. Work is added to streams, and events mark points in it.

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/buffer.h"
#include "core/base/device.h"

namespace psd {

class StreamDevice;

// A point in the work of a stream. An event is made by Stream::Record and never moves, so a wait
// for it always means the same work. Thread-safe.
class Event {
 public:
  virtual ~Event() = default;
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  // Whether the work before the event has ended, with or without success. Does not wait.
  virtual bool passed() const = 0;
  // Waits until the event has passed. Pollers never call this; they use OnPassed.
  // Errors: UNAVAILABLE naming the device and the reason, if the device was lost before this work
  // was done. Part of the work may be done then.
  virtual absl::Status Wait() = 0;
  // Calls `then` exactly once after the event has passed, with the result of Wait, on the device's
  // thread for completions. `then` may add work, but does not wait for a device. It may hold
  // blocks, but not the last reference to a device, not even through a block or an event.
  virtual void OnPassed(absl::AnyInvocable<void(absl::Status) &&> then) = 0;

 protected:
  Event() = default;
};

// A queue of work. The device does the work of one stream in the order in which it was added. Work
// of two streams has no order, unless one waits for an event of the other. Calls return when the
// work has been added, and do not wait until it is done; they may wait for room if the stream has
// a thousand operations to do. An error means that nothing was added. Thread-safe. A stream lives
// as long as its device.
//
// Addresses of device memory lie in blocks of this device that are allocated, in the order of this
// stream, before the work and freed after it. Errors of all calls: UNAVAILABLE naming the device
// and the reason, if it is lost; INVALID_ARGUMENT naming the device, if an address is in memory of
// another kind.
class Stream {
 public:
  virtual ~Stream() = default;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  // For example "stream 2 of cuda:0".
  const std::string& name() const { return name_; }
  virtual StreamDevice& device() const = 0;

  // Returns an event behind all work that has been added so far.
  virtual absl::StatusOr<std::shared_ptr<Event>> Record() = 0;
  // Makes the work that is added later wait, on the device, until `event` has passed. The event may
  // be one of another device of the same kind. If that device is lost, the wait ends, and only the
  // event tells of the loss.
  virtual absl::Status WaitFor(const std::shared_ptr<Event>& event) = 0;

  // Allocates a block from the device's pool. Work that is added to this stream later may use it;
  // other streams wait for an event of this stream first. The contents are undefined. Destroying
  // the block frees it in stream order: work that was added to this stream before may still use the
  // memory, and only later work gets it again. The destructor waits only if it ends the device,
  // which its blocks keep alive. Errors: RESOURCE_EXHAUSTED naming the device, the need, the budget
  // and the use.
  virtual absl::StatusOr<std::shared_ptr<Block>> Allocate(size_t bytes) = 0;
  // Declares that work of this stream uses `block`, which another stream of the device allocated.
  // The memory is then also kept until the work that this stream has when the block is destroyed is
  // done.
  virtual absl::Status AlsoUses(const Block& block) = 0;

  // Copy `bytes` bytes from and to the host. The host's bytes lie in one block of the device's
  // pinned memory, which must live, and at CopyIn stay unchanged, until the copy is done.
  virtual absl::Status CopyIn(std::byte* to, const std::byte* pinned, size_t bytes) = 0;
  virtual absl::Status CopyOut(std::byte* pinned, const std::byte* from, size_t bytes) = 0;
  // Copies `bytes` bytes to memory of this device from that of `from_device`, which may be the same
  // device. The ranges must not overlap. Errors: UNIMPLEMENTED naming the devices if they are of
  // different kinds; such copies go through the host.
  virtual absl::Status CopyFrom(std::byte* to, StreamDevice& from_device, const std::byte* from,
                                size_t bytes) = 0;

 protected:
  explicit Stream(std::string name) : name_(std::move(name)) {}

 private:
  const std::string name_;
};

// A device with streams. What Device offers (memory, copies and kernels) works on the default
// stream; Device::Synchronize waits for all streams. Thread-safe.
//
// A thread of a pool that waits for a device is inside a ScopedBlocking (core/base/executor.h), so
// the pool goes on with other tasks.
//
// When work fails while it runs, the device is lost: all work that is not done then is not done
// any more, its events pass with an error, and new work is refused. Blocks of a lost device may be
// destroyed like others.
class StreamDevice : public Device {
 public:
  virtual Stream& default_stream() = 0;
  // Adds a stream, which lives as long as the device. Errors: RESOURCE_EXHAUSTED if the device has
  // kMaxStreams.
  virtual absl::StatusOr<Stream*> AddStream() = 0;

  // Allocates host memory for the copies of streams, within a budget of its own.
  // Errors: RESOURCE_EXHAUSTED naming the device, the need, the budget and the use.
  virtual Allocator& pinned_memory() = 0;

  // The bytes that all blocks of the device may have together, and those that they have. A block
  // counts from Allocate until it is destroyed.
  virtual size_t budget_bytes() const = 0;
  virtual size_t used_bytes() const = 0;

  // Returns OK, or for a lost device UNAVAILABLE naming it and the reason.
  virtual absl::Status health() const = 0;

 protected:
  using Device::Device;
};

// The most streams of one device.
inline constexpr size_t kMaxStreams = 32;

}  // namespace psd
