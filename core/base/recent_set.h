#pragma once

#include <cstddef>
#include <deque>

#include "absl/container/flat_hash_set.h"

namespace psd {

// A set of at most `bound` members, which forgets the oldest one if another is added.
// Thread-compatible.
template <typename T>
class RecentSet {
 public:
  explicit RecentSet(size_t bound) : bound_(bound) {}

  bool Contains(const T& item) const { return members_.contains(item); }
  size_t size() const { return order_.size(); }
  void Add(const T& item) {
    if (!members_.insert(item).second) return;
    order_.push_back(item);
    if (order_.size() <= bound_) return;
    members_.erase(order_.front());
    order_.pop_front();
  }

 private:
  size_t bound_;
  absl::flat_hash_set<T> members_;
  std::deque<T> order_;
};

}  // namespace psd
