#include "core/autograd/node_index.h"

namespace psd {

size_t NodeIndex::Add(Node* node) {
  const size_t number = nodes_.size();
  nodes_.push_back(node);
  const NodeIndex* nobody = nullptr;
  if (node->claimed_by_.compare_exchange_strong(nobody, this, std::memory_order_acquire,
                                                std::memory_order_relaxed)) {
    node->number_ = number;
  } else {
    unclaimed_.emplace(node, number);
  }
  return number;
}

std::optional<size_t> NodeIndex::FindUnclaimed(const Node* node) const {
  auto found = unclaimed_.find(node);
  if (found == unclaimed_.end()) return std::nullopt;
  return found->second;
}

void NodeIndex::Clear() {
  // Memory order release: the next index that claims a node must write its number only after this
  // index has read the old number for the last time.
  for (Node* node : nodes_) {
    if (node->claimed_by_.load(std::memory_order_relaxed) == this)
      node->claimed_by_.store(nullptr, std::memory_order_release);
  }
  nodes_.clear();
  unclaimed_.clear();
}

}  // namespace psd
