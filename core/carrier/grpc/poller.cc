#include "core/carrier/grpc/poller.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/start_thread.h"
#include "core/base/status.h"
#include "core/base/tsan.h"
#include "core/carrier/grpc/completion_tag.h"

namespace psd::carrier {

absl::StatusOr<std::unique_ptr<Poller>> Poller::Create(int threads) {
  std::unique_ptr<Poller> poller(new Poller);
  for (int i = 1; i <= threads; ++i) {
    const std::string what = absl::StrCat("thread ", i, " of ", threads, " for the network");
    PSD_ASSIGN_OR_RETURN(std::thread thread,
                         StartThread(what, [raw = poller.get()] { raw->Run(); }));
    poller->threads_.push_back(std::move(thread));
  }
  return poller;
}

Poller::~Poller() {
  Stop();
}

void Poller::Watch(std::unique_ptr<grpc::CompletionQueue> queue) {
  {
    MutexLock lock(mutex_);
    queue_ = std::move(queue);
  }
  changed_.NotifyAll();
}

grpc::CompletionQueue* Poller::queue() const {
  MutexLock lock(mutex_);
  return queue_.get();
}

void Poller::Stop() {
  if (threads_.empty()) return;
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_.NotifyAll();
  if (grpc::CompletionQueue* watched = queue()) watched->Shutdown();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

grpc::CompletionQueue* Poller::AwaitQueue() {
  MutexLock lock(mutex_);
  while (queue_ == nullptr && !stopping_) changed_.Wait(mutex_);
  return queue_.get();
}

void Poller::Run() {
  grpc::CompletionQueue* const watched = AwaitQueue();
  if (watched == nullptr) return;
  void* tag = nullptr;
  bool ok = false;
  while (watched->Next(&tag, &ok)) {
    PSD_TSAN_ACQUIRE(tag);
    static_cast<CompletionTag*>(tag)->Complete(ok);
  }
}

}  // namespace psd::carrier
