#include "core/base/completion_threads.h"

#include <cstddef>
#include <deque>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "core/base/memory_scope.h"
#include "core/base/mutex.h"
#include "core/base/small_charges.h"
#include "core/base/start_thread.h"
#include "core/base/status.h"

namespace psd {

class CompletionThreads::State {
 public:
  explicit State(std::shared_ptr<MemoryAccount> memory) : memory_(std::move(memory)) {}

  // Starts the thread of a device, which keeps `self`. Only for the constructor.
  static absl::Status Start(const std::shared_ptr<State>& self, Device& device) {
    auto lane = std::make_unique<Lane>();
    lane->device = &device;
    PSD_ASSIGN_OR_RETURN(lane->thread,
                         StartThread(absl::StrCat("the thread that waits for ", device.name()),
                                     [self, at = lane.get()] { self->Run(*at); }));
    lane->id = lane->thread.get_id();
    MutexLock lock(self->mutex_);
    self->lanes_.push_back(std::move(lane));
    return absl::OkStatus();
  }

  void OnPassed(DeviceEvent event, Then then) PSD_EXCLUDES(mutex_);
  void Shutdown() PSD_EXCLUDES(mutex_);

 private:
  struct Pending {
    std::shared_ptr<Event> event;
    Then then;
  };
  struct Lane {
    Device* device = nullptr;
    std::deque<Pending> queue;
    CondVar wake;
    std::thread thread;
    std::thread::id id;
    bool shuts_down = false;  // a completion on this thread does; used by the thread only
  };

  // Calls what is passed for the device until all threads end, or, below a call that shuts down,
  // until that call ends.
  void Run(Lane& lane) PSD_EXCLUDES(mutex_);
  // Returns null if the device has none, or if all threads end.
  Lane* LaneOf(const Device* device) PSD_REQUIRES(mutex_);
  // Returns the lane whose thread this is, or null.
  Lane* OwnLane() PSD_REQUIRES(mutex_);
  // Lets the threads end if nothing is left to be called.
  void EndIfDone() PSD_REQUIRES(mutex_);

  const std::shared_ptr<MemoryAccount> memory_;  // shared; see the constructor
  Mutex mutex_;                                  // leaf
  std::vector<std::unique_ptr<Lane>> lanes_;     // fixed by the constructor; queues under mutex_
  size_t pending_ PSD_GUARDED_BY(mutex_) = 0;    // that have not been called to their end
  bool stopping_ PSD_GUARDED_BY(mutex_) = false;
  bool stopped_ PSD_GUARDED_BY(mutex_) = false;  // the threads have ended
  CondVar has_stopped_;
};

CompletionThreads::CompletionThreads(absl::Span<Device* const> devices,
                                     std::shared_ptr<MemoryAccount> memory)
    : state_(std::make_shared<State>(std::move(memory))) {
  for (Device* device : devices) {
    started_ = State::Start(state_, *device);
    if (!started_.ok()) return;
  }
}

CompletionThreads::~CompletionThreads() {
  state_->Shutdown();
}

void CompletionThreads::OnPassed(DeviceEvent event, Then then) {
  state_->OnPassed(std::move(event), std::move(then));
}

void CompletionThreads::Shutdown() {
  state_->Shutdown();
}

void CompletionThreads::State::OnPassed(DeviceEvent event, Then then) {
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

CompletionThreads::State::Lane* CompletionThreads::State::LaneOf(const Device* device) {
  if (stopping_ && pending_ == 0) return nullptr;
  for (const std::unique_ptr<Lane>& lane : lanes_)
    if (lane->device == device) return lane.get();
  return nullptr;
}

CompletionThreads::State::Lane* CompletionThreads::State::OwnLane() {
  for (const std::unique_ptr<Lane>& lane : lanes_)
    if (lane->id == std::this_thread::get_id()) return lane.get();
  return nullptr;
}

void CompletionThreads::State::Run(Lane& lane) {
  const bool below_shutdown = lane.shuts_down;
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
    if (lane.shuts_down && !below_shutdown) return;  // Shutdown has counted this call
    MutexLock lock(mutex_);
    --pending_;
    EndIfDone();
  }
}

void CompletionThreads::State::EndIfDone() {
  if (!stopping_ || pending_ > 0) return;
  for (const std::unique_ptr<Lane>& lane : lanes_) lane->wake.NotifyOne();
}

void CompletionThreads::State::Shutdown() {
  Lane* own = nullptr;
  {
    MutexLock lock(mutex_);
    if (!stopped_) own = OwnLane();
    if (std::exchange(stopping_, true)) {
      while (own == nullptr && !stopped_) has_stopped_.Wait(mutex_);
      return;
    }
    if (own != nullptr) {
      own->shuts_down = true;
      --pending_;
    }
    EndIfDone();
  }
  if (own != nullptr) Run(*own);
  for (const std::unique_ptr<Lane>& lane : lanes_) {
    if (lane.get() != own && lane->thread.joinable()) lane->thread.join();
  }
  if (own != nullptr) own->thread.detach();
  MutexLock lock(mutex_);
  stopped_ = true;
  has_stopped_.NotifyAll();
}

}  // namespace psd
