#include "core/autograd/node_index.h"

namespace psd {

std::pair<size_t, bool> NodeIndex::Insert(Node* node) {
  if (std::optional<size_t> found = Find(node)) return {*found, false};
  const size_t number = nodes_.size();
  nodes_.push_back(node);
  const NodeIndex* nobody = nullptr;
  if (node->claimed_by_.compare_exchange_strong(nobody, this, std::memory_order_acquire,
                                                std::memory_order_relaxed)) {
    node->number_ = number;
  } else {
    unclaimed_.emplace(node, number);
  }
  return {number, true};
}

std::optional<size_t> NodeIndex::Find(const Node* node) const {
  if (node->claimed_by_.load(std::memory_order_relaxed) == this) return node->number_;
  if (unclaimed_.empty()) return std::nullopt;
  auto found = unclaimed_.find(node);
  if (found == unclaimed_.end()) return std::nullopt;
  return found->second;
}

void NodeIndex::Clear() {
  // Release, so that the next to claim a node writes its number after this index has read it.
  for (Node* node : nodes_) {
    if (node->claimed_by_.load(std::memory_order_relaxed) == this)
      node->claimed_by_.store(nullptr, std::memory_order_release);
  }
  nodes_.clear();
  unclaimed_.clear();
}

}  // namespace psd
