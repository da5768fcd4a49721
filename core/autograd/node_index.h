#pragma once

// Numbers the nodes that one walk over a graph visits: 0, 1, 2, … in the order of the visits.

#include <atomic>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "core/autograd/node.h"

namespace psd {

// A map from nodes to numbers that mostly needs no hash table: a node itself stores its number for
// the index that claims it first. An index uses its table only for nodes that another index has
// claimed at the time. Thread-compatible; several indices over the same nodes may be used on
// different threads. The nodes must live until Clear or the destructor.
class NodeIndex {
 public:
  NodeIndex() = default;
  ~NodeIndex() { Clear(); }
  NodeIndex(const NodeIndex&) = delete;
  NodeIndex& operator=(const NodeIndex&) = delete;

  // Returns the number of `node`, and whether the node is new.
  std::pair<size_t, bool> Insert(Node* node) {
    const std::optional<size_t> found = Find(node);
    return found.has_value() ? std::pair(*found, false) : std::pair(Add(node), true);
  }
  std::optional<size_t> Find(const Node* node) const {
    if (node->claimed_by_.load(std::memory_order_relaxed) == this) return node->number_;
    return unclaimed_.empty() ? std::nullopt : FindUnclaimed(node);
  }
  size_t size() const { return nodes_.size(); }
  // Forgets all nodes.
  void Clear();

 private:
  size_t Add(Node* node);
  std::optional<size_t> FindUnclaimed(const Node* node) const;

  std::vector<Node*> nodes_;                            // by number
  absl::flat_hash_map<const Node*, size_t> unclaimed_;  // nodes that another index had claimed
};

}  // namespace psd
