#pragma once

// Threads of ours that wait on a completion queue.

#include <grpcpp/completion_queue.h>

#include <memory>
#include <thread>
#include <vector>

namespace psd::carrier {

// Completes what its queue hands back: all tags are CompletionTags. As few threads as may be, since
// each costs every event a wake-up. So what is completed must be short and wait for nothing; the
// code of users has threads of its own. Thread-safe.
class Poller {
 public:
  Poller(std::unique_ptr<grpc::CompletionQueue> queue, int threads);
  // Stops.
  ~Poller();
  Poller(const Poller&) = delete;
  Poller& operator=(const Poller&) = delete;

  grpc::CompletionQueue* queue() { return queue_.get(); }

  // Shuts the queue down and joins the threads.
  // Requires: no operation is started during or after it. Not from a poller thread.
  void Stop();

 private:
  void Run();

  const std::unique_ptr<grpc::CompletionQueue> queue_;
  std::vector<std::thread> threads_;
};

}  // namespace psd::carrier
