#pragma once

// Which steps were applied, within a bound.

#include <cstddef>
#include <deque>

#include "absl/container/flat_hash_set.h"
#include "core/base/ids.h"

namespace psd::optim {

// The last so many step ids. Thread-compatible.
class StepLog {
 public:
  explicit StepLog(size_t bound) : bound_(bound) {}

  bool Contains(GlobalId step) const { return known_.contains(step); }

  // Requires: not Contains(step). The oldest is forgotten when there are more than the bound.
  void Add(GlobalId step) {
    known_.insert(step);
    order_.push_back(step);
    if (order_.size() <= bound_) return;
    known_.erase(order_.front());
    order_.pop_front();
  }

 private:
  const size_t bound_;
  absl::flat_hash_set<GlobalId> known_;
  std::deque<GlobalId> order_;  // of known_, the oldest first
};

}  // namespace psd::optim
