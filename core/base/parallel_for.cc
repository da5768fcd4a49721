#include "core/base/parallel_for.h"

#include <algorithm>
#include <atomic>
#include <memory>

#include "core/base/mutex.h"

namespace psd {
namespace {

// The state of one loop. A helper that begins too late keeps it after ParallelFor has returned;
// that helper finds no call left and never uses `f`, which may be gone.
class Loop {
 public:
  Loop(size_t count, absl::FunctionRef<void(size_t)> f) : f_(f), count_(count), left_(count) {}

  // Makes calls that no other thread has taken, until none is left.
  void Work() PSD_EXCLUDES(mutex_) {
    size_t returned = 0;
    for (size_t i = next_++; i < count_; i = next_++, ++returned) f_(i);
    if (returned == 0) return;
    MutexLock lock(mutex_);
    left_ -= returned;
    if (left_ == 0) done_.NotifyAll();
  }

  void Wait() PSD_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    while (left_ > 0) done_.Wait(mutex_);
  }

 private:
  const absl::FunctionRef<void(size_t)> f_;
  const size_t count_;
  std::atomic<size_t> next_{0};
  Mutex mutex_;  // leaf
  CondVar done_;
  size_t left_ PSD_GUARDED_BY(mutex_);  // calls that have not returned
};

}  // namespace

void ParallelFor(const Helpers& helpers, size_t count, absl::FunctionRef<void(size_t)> f) {
  const size_t wanted =
      helpers.executor == nullptr ? 0 : static_cast<size_t>(std::max(helpers.count, 0));
  if (count < 2 || wanted == 0) {
    for (size_t i = 0; i < count; ++i) f(i);
    return;
  }
  auto loop = std::make_shared<Loop>(count, f);  // shared with the helpers
  for (size_t i = 0; i < std::min(wanted, count - 1); ++i) {
    if (!helpers.executor->Submit([loop] { loop->Work(); }).ok()) break;  // full, or shut down
  }
  loop->Work();
  loop->Wait();
}

}  // namespace psd
