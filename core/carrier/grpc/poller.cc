#include "core/carrier/grpc/poller.h"

#include <utility>

#include "core/base/tsan.h"
#include "core/carrier/grpc/completion_tag.h"

namespace psd::carrier {

Poller::Poller(std::unique_ptr<grpc::CompletionQueue> queue, int threads)
    : queue_(std::move(queue)) {
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { Run(); });
}

Poller::~Poller() {
  Stop();
}

void Poller::Stop() {
  if (threads_.empty()) return;
  queue_->Shutdown();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void Poller::Run() {
  void* tag = nullptr;
  bool ok = false;
  while (queue_->Next(&tag, &ok)) {
    PSD_TSAN_ACQUIRE(tag);
    static_cast<CompletionTag*>(tag)->Complete(ok);
  }
}

}  // namespace psd::carrier
