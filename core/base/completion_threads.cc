#include "core/base/completion_threads.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/memory_scope.h"
#include "core/base/small_charges.h"
#include "core/base/start_thread.h"

namespace psd {

CompletionThreads::CompletionThreads(absl::Span<Device* const> devices,
                                     std::shared_ptr<MemoryAccount> memory)
    : memory_(std::move(memory)) {
  for (Device* device : devices) {
    auto lane = std::make_unique<Lane>();
    lane->device = device;
    absl::StatusOr<std::thread> thread =
        StartThread(absl::StrCat("the thread that waits for ", device->name()),
                    [this, at = lane.get()] { Run(*at); });
    if (!thread.ok()) {
      started_ = thread.status();
      return;
    }
    lane->thread = *std::move(thread);
    MutexLock lock(mutex_);
    lanes_.push_back(std::move(lane));
  }
}

CompletionThreads::~CompletionThreads() {
  Shutdown();
}

void CompletionThreads::OnPassed(DeviceEvent event, Then then) {
  {
    MutexLock lock(mutex_);
    if (Lane* const lane = LaneOf(event.device); lane != nullptr) {
      lane->queue.push_back({std::move(event.event), std::move(then)});
      ++pending_;
      lane->wake.NotifyOne();
      return;
    }
  }
  std::move(then)(event.event->Wait());
}

CompletionThreads::Lane* CompletionThreads::LaneOf(const Device* device) {
  if (stopping_ && pending_ == 0) return nullptr;
  for (const std::unique_ptr<Lane>& lane : lanes_)
    if (lane->device == device) return lane.get();
  return nullptr;
}

void CompletionThreads::Run(Lane& lane) {
  const MemoryScope memory(memory_.get());
  while (true) {
    Pending pending;
    {
      MutexLock lock(mutex_);
      while (lane.queue.empty() && !(stopping_ && pending_ == 0)) lane.wake.Wait(mutex_);
      if (lane.queue.empty()) return;
      pending = std::move(lane.queue.front());
      lane.queue.pop_front();
    }
    absl::Status passed = pending.event->Wait();
    BeginSmallCharges();
    std::move(pending.then)(std::move(passed));
    pending = {};  // drops what `then` holds before it counts as called
    EndSmallCharges();
    MutexLock lock(mutex_);
    --pending_;
    EndIfDone();
  }
}

void CompletionThreads::EndIfDone() {
  if (!stopping_ || pending_ > 0) return;
  for (const std::unique_ptr<Lane>& lane : lanes_) lane->wake.NotifyOne();
}

void CompletionThreads::Shutdown() {
  {
    MutexLock lock(mutex_);
    if (std::exchange(stopping_, true)) {
      while (!stopped_) has_stopped_.Wait(mutex_);
      return;
    }
    EndIfDone();
  }
  for (const std::unique_ptr<Lane>& lane : lanes_)
    if (lane->thread.joinable()) lane->thread.join();
  MutexLock lock(mutex_);
  stopped_ = true;
  has_stopped_.NotifyAll();
}

}  // namespace psd
