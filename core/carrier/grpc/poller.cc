#include "core/carrier/grpc/poller.h"

#include <algorithm>
#include <utility>

#include "absl/time/time.h"
#include "core/base/start_thread.h"
#include "core/base/tsan.h"
#include "core/carrier/grpc/completion_tag.h"

namespace psd::carrier {
namespace {

// How often the threads are looked after. Two looks in a row that find all of them busy, and
// nothing completed between, call for one more.
constexpr absl::Duration kTick = absl::Milliseconds(10);

// Whoever has as many callbacks wait for each other is not helped by more.
constexpr size_t kMaxThreads = 256;

void JoinAll(std::vector<std::thread> threads) {
  for (std::thread& thread : threads) thread.join();
}

}  // namespace

Poller::Poller(std::unique_ptr<grpc::CompletionQueue> queue, int threads)
    : queue_(std::move(queue)), wanted_(threads), running_(threads) {
  {
    MutexLock lock(mutex_);
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { Run(); });
  }
  watch_ = std::thread([this] { Watch(); });
}

Poller::~Poller() {
  Stop();
}

void Poller::Stop() {
  if (!watch_.joinable()) return;
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  wake_.NotifyAll();
  watch_.join();
  queue_->Shutdown();
  std::vector<std::thread> threads, gone;
  {
    MutexLock lock(mutex_);
    threads.swap(threads_);
    gone.swap(gone_);
  }
  JoinAll(std::move(threads));
  JoinAll(std::move(gone));
}

void Poller::Run() {
  void* tag = nullptr;
  bool ok = false;
  while (queue_->Next(&tag, &ok)) {
    PSD_TSAN_ACQUIRE(tag);
    Begin();
    static_cast<CompletionTag*>(tag)->Complete(ok);
    End();
    if (IsSurplus()) return Leave();
  }
}

// Either this sees that the watch sleeps, or the watch sees that something is being completed.
void Poller::Begin() {
  ++completing_;
  if (!watch_sleeps_) return;
  {
    MutexLock lock(mutex_);
    watch_sleeps_ = false;
  }
  wake_.NotifyAll();
}

void Poller::End() {
  --completing_;
  completed_.fetch_add(1, std::memory_order_relaxed);
}

bool Poller::IsSurplus() {
  int running = running_;
  while (running - completing_ > wanted_) {
    if (running_.compare_exchange_weak(running, running - 1)) return true;
  }
  return false;
}

void Poller::Leave() {
  MutexLock lock(mutex_);
  auto self = std::find_if(threads_.begin(), threads_.end(), [](const std::thread& thread) {
    return thread.get_id() == std::this_thread::get_id();
  });
  if (self == threads_.end()) return;  // the poller stops, and joins it
  gone_.push_back(std::move(*self));
  threads_.erase(self);
}

void Poller::Watch() {
  while (AwaitEvent()) {
    uint64_t completed = completed_;
    for (int stuck = 0; AwaitTick();) {
      const bool quiet = completed == completed_;
      if (quiet && completing_ == 0) break;
      stuck = quiet && completing_ >= running_ ? stuck + 1 : 0;
      if (stuck >= 2) AddThread();
      completed = completed_;
    }
  }
}

bool Poller::AwaitEvent() {
  MutexLock lock(mutex_);
  watch_sleeps_ = true;
  while (watch_sleeps_ && completing_ == 0 && !stopping_) wake_.Wait(mutex_);
  watch_sleeps_ = false;
  return !stopping_;
}

bool Poller::AwaitTick() {
  MutexLock lock(mutex_);
  if (!stopping_) wake_.WaitFor(mutex_, kTick);
  return !stopping_;
}

void Poller::AddThread() {
  std::vector<std::thread> gone;
  {
    MutexLock lock(mutex_);
    gone.swap(gone_);
  }
  JoinAll(std::move(gone));
  MutexLock lock(mutex_);
  if (stopping_ || threads_.size() >= kMaxThreads) return;
  auto thread = StartThread([this] { Run(); });
  if (!thread.ok()) return;  // those there are go on alone
  threads_.push_back(*std::move(thread));
  ++running_;
}

}  // namespace psd::carrier
