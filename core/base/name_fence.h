#pragma once

// Records which incarnation of a worker took each name last, and rejects the earlier ones.

#include <cstddef>
#include <deque>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "core/base/ids.h"
#include "core/base/recent_set.h"

namespace psd {

// The holders of names, and the fenced (rejected) incarnations. Thread-compatible.
//
// Guarantees: an incarnation is fenced as soon as another one takes its name, even if it had left
// before. At most `bound` fenced incarnations and about `bound` names are remembered; the oldest
// are forgotten first. A forgotten incarnation is not recognized any more, but this requires that
// it comes back after `bound` others took names.
class NameFence {
 public:
  explicit NameFence(size_t bound) : bound_(bound), fenced_(bound) {}

  // Gives `name` to `incarnation`, and fences the incarnation that had the name before.
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
  absl::flat_hash_map<std::string, Incarnation> holders_;  // the last one that took each name
  std::deque<std::pair<std::string, Incarnation>> order_;  // in the order of Take, oldest first
  RecentSet<Incarnation> fenced_;
};

}  // namespace psd
