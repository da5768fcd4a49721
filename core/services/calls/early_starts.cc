#include "core/services/calls/early_starts.h"

#include <algorithm>
#include <utility>

namespace psd::services {

std::shared_ptr<EarlyStarts::Candidate> EarlyStarts::Add(Start start) {
  auto candidate = std::make_shared<Candidate>(std::move(start));
  {
    MutexLock lock(mutex_);
    if (waiting_.size() >= sweep_at_) {
      waiting_.erase(std::remove_if(waiting_.begin(), waiting_.end(),
                                    [](const auto& each) { return each.expired(); }),
                     waiting_.end());
      sweep_at_ = std::max(kLeastSweep, 2 * waiting_.size());
    }
    waiting_.push_back(candidate);
  }
  StartWaiting();
  return candidate->started() ? nullptr : candidate;
}

void EarlyStarts::GiveBack() {
  {
    MutexLock lock(mutex_);
    ++free_;
  }
  StartWaiting();
}

// A start may fail and give its leave back at once, on this thread. The outer call's loop then uses
// the leave, so that the calls do not nest.
void EarlyStarts::StartWaiting() {
  while (true) {
    std::shared_ptr<Candidate> next;
    {
      MutexLock lock(mutex_);
      if (starting_) return;
      while (free_ > 0 && next == nullptr && !waiting_.empty()) {
        next = waiting_.front().lock();
        waiting_.pop_front();
      }
      if (next == nullptr) return;
      --free_;
      starting_ = true;
    }
    next->Begin(absl::OkStatus(),
                Leave(this, [self = shared_from_this()](void*) { self->GiveBack(); }));
    MutexLock lock(mutex_);
    starting_ = false;
  }
}

bool EarlyStarts::Candidate::started() const {
  MutexLock lock(mutex_);
  return start_ == nullptr;
}

void EarlyStarts::Candidate::Begin(const absl::Status& status, Leave leave) {
  Start start;
  {
    MutexLock lock(mutex_);
    start = std::exchange(start_, nullptr);
  }
  if (start != nullptr) start(status, std::move(leave));
}

}  // namespace psd::services
