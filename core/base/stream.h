#pragma once

// Queues of a device's work, and events, which mark points in them.

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/buffer.h"

namespace psd {

class Device;  // core/base/device.h

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
  virtual Device& device() const = 0;

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
  // Declares that this stream uses `block`, and makes its later work wait until all work is done
  // that the other streams which use the block have now. They count as users no longer, unless they
  // declare it again. For memory that is written again without being freed.
  virtual absl::Status WaitForUsers(const Block& block) = 0;

  // Copy `bytes` bytes from and to the host. The host's bytes lie in one block of the device's
  // pinned memory, which must live, and at CopyIn stay unchanged, until the copy is done.
  virtual absl::Status CopyIn(std::byte* to, const std::byte* pinned, size_t bytes) = 0;
  virtual absl::Status CopyOut(std::byte* pinned, const std::byte* from, size_t bytes) = 0;
  // Copies `bytes` bytes to memory of this device from that of `from_device`, which may be the same
  // device. The ranges must not overlap. Errors: UNIMPLEMENTED naming the devices if they are of
  // different kinds; such copies go through the host.
  virtual absl::Status CopyFrom(std::byte* to, Device& from_device, const std::byte* from,
                                size_t bytes) = 0;

 protected:
  explicit Stream(std::string name) : name_(std::move(name)) {}

 private:
  const std::string name_;
};

// While a StreamScope exists, operators, copies and allocations of this thread that concern the
// stream's device are added to `stream` instead of the device's default stream. The thread orders
// this work behind that of other streams, by WaitFor, and declares the blocks of other streams that
// it uses, by AlsoUses. Scopes may be nested; the innermost one counts, also for other devices.
class StreamScope {
 public:
  explicit StreamScope(Stream& stream);
  ~StreamScope();
  StreamScope(const StreamScope&) = delete;
  StreamScope& operator=(const StreamScope&) = delete;

 private:
  Stream* const outer_;
};

// Returns the stream of the innermost StreamScope of this thread if it is one of `device`,
// otherwise the default stream of `device`. Null stands for the host, which has none.
Stream* CurrentStream(Device* device);

// Waits until the work is done that the thread's CurrentStream of `device` has now. Does nothing
// for the host. Errors: UNAVAILABLE naming the device if it is lost.
absl::Status AwaitCurrentWork(Device* device);

}  // namespace psd
