#include "client/ddp/gradient_paths.h"

#include <cstddef>

#include "absl/container/flat_hash_map.h"
#include "core/autograd/node_index.h"
#include "core/autograd/sparse_leaf.h"
#include "core/dist_autograd/functions.h"

namespace psd {
namespace {

// Walks the graph of a backward once, and notes where it reaches parameters.
class Walk {
 public:
  explicit Walk(const std::vector<GlobalId>& keys) : paths_(keys.size()) {
    for (size_t i = 0; i < keys.size(); ++i) number_of_[keys[i]] = i;
  }

  void From(const std::shared_ptr<Node>& start) {
    Visit(start);
    while (!open_.empty()) {
      const Node* node = open_.back();
      open_.pop_back();
      for (const Edge& edge : node->next())
        if (edge) Visit(edge.node);
    }
  }
  // Notes that gradients also come in a way that the graph does not show.
  void NoteOther(const LeafInfo& leaf) {
    if (GradientPath* path = PathOf(leaf); path != nullptr) *path = {nullptr, /*several=*/true};
  }
  std::vector<GradientPath> Take() { return std::move(paths_); }

 private:
  void Visit(const std::shared_ptr<Node>& node) {
    if (!visited_.Insert(node.get()).second) return;
    if (!node->next().empty()) return open_.push_back(node.get());
    if (const LeafInfo* rows = LeafOfRows(*node); rows != nullptr) NoteOther(*rows);
    if (const LeafInfo* leaf = node->leaf(); leaf != nullptr) NoteLeaf(*leaf, node);
  }
  void NoteLeaf(const LeafInfo& leaf, const std::shared_ptr<Node>& node) {
    GradientPath* path = PathOf(leaf);
    if (path == nullptr) return;
    if (path->several || path->leaf != nullptr) {
      *path = {nullptr, /*several=*/true};
    } else {
      path->leaf = node;
    }
  }
  GradientPath* PathOf(const LeafInfo& leaf) {
    const auto number = number_of_.find(leaf.key);
    return number == number_of_.end() ? nullptr : &paths_[number->second];
  }

  absl::flat_hash_map<GlobalId, size_t> number_of_;  // the place of each key
  std::vector<GradientPath> paths_;
  NodeIndex visited_;
  std::vector<const Node*> open_;  // visited nodes whose edges were not followed yet
};

}  // namespace

std::vector<GradientPath> FindPaths(const std::vector<GlobalId>& keys,
                                    const dist_autograd::ContextState& context,
                                    const std::vector<Variable>& roots) {
  // The walk numbers the nodes, so the sends must outlive it.
  const std::vector<std::shared_ptr<dist_autograd::SendFunction>> sends = context.Sends();
  Walk walk(keys);
  for (const Variable& root : roots)
    if (root.requires_grad()) walk.From(root.gradient_edge().node);
  // Gradients of what this worker has sent to others come back. They may also stay away.
  for (const auto& send : sends) {
    walk.From(send);
    for (const LeafInfo& leaf : send->leaves()) walk.NoteOther(leaf);
  }
  return walk.Take();
}

}  // namespace psd
