#include "core/carrier/passed_descriptors.h"

namespace psd::carrier {

void HostProcess::OnEnded(std::function<void()> callback) {
  {
    MutexLock lock(mutex_);
    if (!ended_) {
      callbacks_.push_back(std::move(callback));
      return;
    }
  }
  callback();
}

void HostProcess::End() {
  std::vector<std::function<void()>> callbacks;
  {
    MutexLock lock(mutex_);
    ended_ = true;
    callbacks.swap(callbacks_);
  }
  for (const std::function<void()>& callback : callbacks) callback();
}

}  // namespace psd::carrier
