#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <utility>

#include "core/base/mutex.h"

namespace psd::services {

class CollectiveGroup;

// Keeps the last groups that have failed here or were left, also after their user has let them go:
// another rank that asks only then is told why the group failed, or that this rank has left, and
// not that this worker is in no such group. Thread-safe.
class EndedGroups {
 public:
  // A group that has ended holds no tensors.
  static constexpr size_t kMostGroups = 64;

  void Keep(std::shared_ptr<CollectiveGroup> group) PSD_EXCLUDES(mutex_) {
    std::shared_ptr<CollectiveGroup> oldest;  // is destroyed without the lock
    MutexLock lock(mutex_);
    groups_.push_back(std::move(group));
    if (groups_.size() <= kMostGroups) return;
    oldest = std::move(groups_.front());
    groups_.pop_front();
  }

 private:
  Mutex mutex_;                                                                 // leaf
  std::deque<std::shared_ptr<CollectiveGroup>> groups_ PSD_GUARDED_BY(mutex_);  // with its user
};

}  // namespace psd::services
