#pragma once

// A std::set that allocates nothing while few elements come and go.

#include <cstddef>
#include <set>
#include <utility>
#include <vector>

namespace psd {

// Keeps a few nodes of erased elements and uses them for new elements. Thread-compatible.
template <typename T>
class RecyclingSet {
 public:
  using Nodes = std::set<T>;

  // The most nodes that are kept.
  static constexpr size_t kMaxSpare = 64;

  bool empty() const { return nodes_.empty(); }
  // Requires: not empty.
  const T& front() const { return *nodes_.begin(); }

  void Insert(T element) {
    if (spare_.empty()) {
      nodes_.insert(std::move(element));
      return;
    }
    auto node = std::move(spare_.back());
    spare_.pop_back();
    node.value() = std::move(element);
    nodes_.insert(std::move(node));
  }
  // Returns false if there is no such element.
  bool Erase(const T& element) {
    auto node = nodes_.extract(element);
    const bool found = !node.empty();
    if (found) Keep(std::move(node));
    return found;
  }
  // Requires: not empty.
  T PopFront() {
    auto node = nodes_.extract(nodes_.begin());
    T element = std::move(node.value());
    Keep(std::move(node));
    return element;
  }

 private:
  void Keep(typename Nodes::node_type node) {
    if (spare_.size() < kMaxSpare) spare_.push_back(std::move(node));
  }

  Nodes nodes_;
  std::vector<typename Nodes::node_type> spare_;
};

}  // namespace psd
