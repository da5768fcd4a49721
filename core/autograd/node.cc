#include "core/autograd/node.h"

#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/autograd/hooks.h"

namespace psd {
namespace {

// What the nodes that this thread is destroying lead to; null while it destroys none.
thread_local std::vector<std::shared_ptr<Node>>* dying = nullptr;

// Those that others hold too stay alive without it (or die here, where others let go of them at
// the same time, and hand over what they lead to).
void MoveNodes(absl::Span<Edge> edges, std::vector<std::shared_ptr<Node>>& to) {
  for (Edge& edge : edges) {
    if (edge.node.use_count() == 1) {
      to.push_back(std::move(edge.node));
    } else {
      edge.node.reset();
    }
  }
}

}  // namespace

absl::Status GradientSink::AccumulateSparse(const LeafInfo& leaf, SparseTensor gradient) {
  return absl::FailedPreconditionError(
      absl::StrCat("a local backward has reached ", gradient.ToString(), " for value ",
                   leaf.key.ToString(), "; run the context's backward instead"));
}

absl::Status SavedValuesFreed(absl::string_view name) {
  return absl::FailedPreconditionError(
      absl::StrCat("a second backward through ", name,
                   ", whose saved values the first one freed; set retain_graph in all but the "
                   "last"));
}

void Node::DeleteHooks::operator()(NodeHooks* hooks) const {
  delete hooks;
}

NodeHooks& Node::MutableHooks() {
  if (hooks_ == nullptr) hooks_.reset(new NodeHooks);
  return *hooks_;
}

// The outermost destructor of a thread drops nodes in a loop; those that run inside it only hand
// theirs over. So the depth of the stack does not grow with that of the graph.
void Node::Drop(absl::Span<Edge> edges) {
  if (dying != nullptr) return MoveNodes(edges, *dying);
  std::vector<std::shared_ptr<Node>> nodes;
  dying = &nodes;
  MoveNodes(edges, nodes);
  while (!nodes.empty()) {
    const std::shared_ptr<Node> node = std::move(nodes.back());
    nodes.pop_back();
  }
  dying = nullptr;
}

}  // namespace psd
