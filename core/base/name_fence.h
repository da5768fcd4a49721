#pragma once

// Which incarnation of a worker has a name, and which have lost theirs to another.

#include <cstddef>
#include <deque>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "core/base/ids.h"
#include "core/base/recent_set.h"

namespace psd {

// Thread-compatible. Pure.
//
// Guarantees: an incarnation whose name another one took is fenced, whether it held the name at
// that moment or had left before. The oldest names and the oldest fenced incarnations are forgotten
// beyond the bound: by then they can come back only by a worker that was stopped for as many others
// to come and go.
class NameFence {
 public:
  explicit NameFence(size_t bound) : bound_(bound), fenced_(bound) {}

  // `incarnation` has `name` from now on.
  void Take(const std::string& name, Incarnation incarnation) {
    auto [holder, added] = holders_.try_emplace(name, incarnation);
    if (!added && holder->second == incarnation) return;
    if (!added) fenced_.Add(std::exchange(holder->second, incarnation));
    order_.emplace_back(name, incarnation);
    if (order_.size() <= bound_) return;
    auto oldest = holders_.find(order_.front().first);
    if (oldest != holders_.end() && oldest->second == order_.front().second) holders_.erase(oldest);
    order_.pop_front();
  }

  bool IsFenced(Incarnation incarnation) const { return fenced_.Contains(incarnation); }

 private:
  const size_t bound_;
  absl::flat_hash_map<std::string, Incarnation> holders_;  // the latest of each name
  std::deque<std::pair<std::string, Incarnation>> order_;  // as they took it, oldest first
  RecentSet<Incarnation> fenced_;
};

}  // namespace psd
