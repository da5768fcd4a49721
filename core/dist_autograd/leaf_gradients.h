#pragma once

// The gradients that a context has collected on one worker, by leaf.

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "core/autograd/read_version.h"
#include "core/base/ids.h"
#include "core/tensor/dtype.h"
#include "core/tensor/sparse_tensor.h"
#include "core/tensor/tensor.h"

namespace psd::dist_autograd {

// A collected gradient: dense or, if `gradient` is undefined, the sum of the sparse parts.
struct LeafGradient {
  GlobalId key;         // the leaf's
  ReadVersion version;  // version of the parameter; unknown for a leaf that is not a parameter
  Tensor gradient;
  std::vector<SparseTensor> sparse;
  // Set if `gradient` is a sum in f32 of gradients of this dtype, f16 or bf16. It is rounded when
  // all gradients have been added.
  std::optional<DType> rounds_to;
};

// A map from keys to gradients, sorted by key. Keys mostly come in ascending order; elements that
// come in this order are contiguous in memory. Thread-compatible.
class LeafGradients {
 public:
  // Finds or adds the gradient of `key`. Returns it and whether it was added. The pointer is valid
  // until the next gradient is added.
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

  // Returns null if there is no gradient for `key`.
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

  // Makes room for `count` more gradients at once.
  void Reserve(size_t count) {
    const size_t wanted = ascending_.size() + count;
    if (wanted > ascending_.capacity())
      ascending_.reserve(std::max(wanted, 2 * ascending_.capacity()));
  }

  size_t size() const { return ascending_.size() + late_.size(); }
  // Calls `visit` with each gradient, in the order of the keys.
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
  // Gradients that were added after one with a greater key. All their keys are below the last key
  // of ascending_.
  std::map<GlobalId, LeafGradient> late_;
};

}  // namespace psd::dist_autograd
