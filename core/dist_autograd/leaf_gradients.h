#pragma once

// The gradients that a context has collected on one worker, by leaf.

#include <algorithm>
#include <cstddef>
#include <map>
#include <utility>
#include <vector>

#include "core/autograd/read_version.h"
#include "core/base/ids.h"
#include "core/tensor/sparse_tensor.h"
#include "core/tensor/tensor.h"

namespace psd::dist_autograd {

// A gradient that has been collected here: dense, or if that is undefined the sum of sparse parts.
struct LeafGradient {
  GlobalId key;         // the leaf's
  ReadVersion version;  // of the parameter; unknown for a leaf that is none
  Tensor gradient;
  std::vector<SparseTensor> sparse;
};

// Sorted by key. Most keys come in ascending order, and lie side by side then. Thread-compatible.
class LeafGradients {
 public:
  // Where that of `key` is, until the next is added, and whether it was added now.
  std::pair<LeafGradient*, bool> TryAdd(GlobalId key) {
    if (ascending_.empty() || ascending_.back().key < key) {
      LeafGradient& added = ascending_.emplace_back();
      added.key = key;
      return {&added, true};
    }
    if (LeafGradient* known = Find(key); known != nullptr) return {known, false};
    LeafGradient& added = late_[key];
    added.key = key;
    return {&added, true};
  }

  // Null: there is none.
  const LeafGradient* Find(GlobalId key) const {
    const auto found = std::lower_bound(
        ascending_.begin(), ascending_.end(), key,
        [](const LeafGradient& gradient, GlobalId wanted) { return gradient.key < wanted; });
    if (found != ascending_.end() && found->key == key) return &*found;
    const auto late = late_.find(key);
    return late == late_.end() ? nullptr : &late->second;
  }
  LeafGradient* Find(GlobalId key) {
    return const_cast<LeafGradient*>(static_cast<const LeafGradients*>(this)->Find(key));
  }

  // Makes room for `count` more at once.
  void Reserve(size_t count) {
    const size_t wanted = ascending_.size() + count;
    if (wanted > ascending_.capacity())
      ascending_.reserve(std::max(wanted, 2 * ascending_.capacity()));
  }

  size_t size() const { return ascending_.size() + late_.size(); }
  // Calls `visit` with each, in the order of the keys.
  template <typename Visit>
  void ForEach(const Visit& visit) const {
    auto late = late_.begin();
    for (const LeafGradient& each : ascending_) {
      for (; late != late_.end() && late->first < each.key; ++late) visit(late->second);
      visit(each);
    }
  }

 private:
  std::vector<LeafGradient> ascending_;
  // Those that came after one of a greater key; so all are below the last of ascending_.
  std::map<GlobalId, LeafGradient> late_;
};

}  // namespace psd::dist_autograd
