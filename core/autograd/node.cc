#include "core/autograd/node.h"

#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/autograd/hooks.h"
#include "core/base/remedy.h"

namespace psd {
namespace {

// The nodes that the outermost Drop of this thread still has to release; null while no Drop runs.
thread_local std::vector<std::shared_ptr<Node>>* dying = nullptr;

// Moves the nodes that nobody else holds to `to`, and releases the others, which stay alive. If the
// other holders release such a node at the same time, it is destroyed here, and its own Drop then
// adds its successors to the list.
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
  return WithRemedy(absl::FailedPreconditionError(absl::StrCat("a local backward has reached ",
                                                               gradient.ToString(), " for value ",
                                                               leaf.key.ToString())),
                    "run the context's backward instead");
}

absl::Status SavedValuesFreed(absl::string_view name) {
  return WithRemedy(
      absl::FailedPreconditionError(absl::StrCat("a second backward through ", name,
                                                 ", whose saved values the first one freed")),
      "set retain_graph in all but the last");
}

void Node::DeleteHooks::operator()(NodeHooks* hooks) const {
  delete hooks;
}

NodeHooks& Node::MutableHooks() {
  if (hooks_ == nullptr) hooks_.reset(new NodeHooks);
  return *hooks_;
}

// The outermost Drop of a thread destroys nodes in a loop. The Drop of each destroyed node only
// adds that node's successors to the list, so the stack does not grow with the depth of the graph.
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
