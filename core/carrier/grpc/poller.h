#pragma once

// Threads that wait on a completion queue.

#include <grpcpp/completion_queue.h>

#include <memory>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/mutex.h"

namespace psd::carrier {

// Calls Complete on every tag that its queue hands back; all tags must be CompletionTags. There are
// few threads, because each additional one costs a wake-up per event. So Complete must be short and
// never wait; users' code runs on other threads. Thread-safe.
class Poller {
 public:
  // Starts the threads, which then wait for a queue. Errors: RESOURCE_EXHAUSTED when the system
  // refuses one of them.
  static absl::StatusOr<std::unique_ptr<Poller>> Create(int threads);
  // Calls Stop.
  ~Poller();
  Poller(const Poller&) = delete;
  Poller& operator=(const Poller&) = delete;

  // Handles the events of `queue` from now on. Must be called at most once, before Stop.
  void Watch(std::unique_ptr<grpc::CompletionQueue> queue) PSD_EXCLUDES(mutex_);
  // Null before Watch.
  grpc::CompletionQueue* queue() const PSD_EXCLUDES(mutex_);

  // Shuts the queue down and joins the threads. Requires: no operation is started during or after
  // this call. Must not be called on a poller thread.
  void Stop() PSD_EXCLUDES(mutex_);

 private:
  Poller() = default;
  void Run() PSD_EXCLUDES(mutex_);
  // Returns null if the poller stops before it gets a queue.
  grpc::CompletionQueue* AwaitQueue() PSD_EXCLUDES(mutex_);

  mutable Mutex mutex_;  // leaf
  CondVar changed_;
  std::unique_ptr<grpc::CompletionQueue> queue_ PSD_GUARDED_BY(mutex_);
  bool stopping_ PSD_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace psd::carrier
