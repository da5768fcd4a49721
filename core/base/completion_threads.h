#pragma once

// Threads that wait for devices, so that the threads which add work need not.

#include <memory>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "core/base/device.h"
#include "core/base/memory_budget.h"
#include "core/base/stream.h"

namespace psd {

// An event of a device.
struct DeviceEvent {
  Device* device = nullptr;
  std::shared_ptr<Event> event = nullptr;  // shared with others that wait for it
};

// One thread for each device, so that a device that does not get on holds up only what needs it.
// Thread-safe.
class CompletionThreads {
 public:
  using Then = absl::AnyInvocable<void(absl::Status) &&>;

  // `devices` must outlive this object. `memory` is the account for what the threads allocate (see
  // MemoryScope), shared with the worker's other threads; null for ordinary process memory. Check
  // started() afterwards.
  explicit CompletionThreads(absl::Span<Device* const> devices,
                             std::shared_ptr<MemoryAccount> memory = nullptr);
  // As Shutdown.
  ~CompletionThreads();
  CompletionThreads(const CompletionThreads&) = delete;
  CompletionThreads& operator=(const CompletionThreads&) = delete;

  // OK, or RESOURCE_EXHAUSTED if the system refused one of the threads. The code that made this
  // object must check it.
  const absl::Status& started() const { return started_; }

  // Calls `then` exactly once, after the event has passed, with the result of Event::Wait. It runs
  // on the device's thread and may wait for the device. What is passed for one device is called in
  // that order. For other devices than those of the constructor, and after Shutdown, this waits and
  // calls `then` itself, with the MemoryScope of the calling thread.
  void OnPassed(DeviceEvent event, Then then);

  // Waits until all that was passed to OnPassed has been called, and ends the threads. May be
  // called again, also while another thread calls it. One of these threads may call it too, in
  // `then`: this call counts as ended then, what is left for its device is called before Shutdown
  // returns, and the thread ends behind it. It does not wait for another thread that shuts down.
  void Shutdown();

 private:
  class State;

  const std::shared_ptr<State> state_;  // shared with the threads, one of which may outlive this
  absl::Status started_;                // fixed by the constructor
};

}  // namespace psd
