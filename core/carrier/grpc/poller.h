#pragma once

// Threads of ours that wait on a completion queue.

#include <grpcpp/completion_queue.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "core/base/mutex.h"

namespace psd::carrier {

// Completes what its queue hands back: all tags are CompletionTags. As few threads as may be take
// events, since each that joins them costs every event a wake-up. When none of them has come back
// from what it completes for some hundredths of a second, because a callback takes its time or
// waits for another event, one more takes events in their place, until they are back. Thread-safe.
class Poller {
 public:
  Poller(std::unique_ptr<grpc::CompletionQueue> queue, int threads);
  // Stops.
  ~Poller();
  Poller(const Poller&) = delete;
  Poller& operator=(const Poller&) = delete;

  grpc::CompletionQueue* queue() { return queue_.get(); }

  // Shuts the queue down and joins the threads.
  // Requires: no operation is started during or after it, and no callback waits for one. Not from a
  // poller thread.
  void Stop() PSD_EXCLUDES(mutex_);

 private:
  void Run();
  // Around what a thread completes.
  void Begin() PSD_EXCLUDES(mutex_);
  void End();
  // Whether more threads than wanted could take events; then the caller is to go.
  bool IsSurplus();
  void Leave() PSD_EXCLUDES(mutex_);

  // Adds threads; runs on a thread of its own, which sleeps while nothing is completed.
  void Watch() PSD_EXCLUDES(mutex_);
  // These two return false once the poller stops.
  bool AwaitEvent() PSD_EXCLUDES(mutex_);
  bool AwaitTick() PSD_EXCLUDES(mutex_);
  void AddThread() PSD_EXCLUDES(mutex_);

  const std::unique_ptr<grpc::CompletionQueue> queue_;
  const int wanted_;
  std::atomic<int> running_;        // threads
  std::atomic<int> completing_{0};  // of these
  std::atomic<uint64_t> completed_{0};
  std::atomic<bool> watch_sleeps_{false};

  Mutex mutex_;  // leaf
  CondVar wake_;
  bool stopping_ PSD_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_ PSD_GUARDED_BY(mutex_);
  std::vector<std::thread> gone_ PSD_GUARDED_BY(mutex_);  // have left or are about to
  std::thread watch_;
};

}  // namespace psd::carrier
