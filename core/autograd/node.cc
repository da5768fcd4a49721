#include "core/autograd/node.h"

#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/autograd/hooks.h"

namespace psd {
namespace {

// Edges of the nodes that this thread is destroying; null while it destroys none.
thread_local std::vector<Edge>* dying_edges = nullptr;

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

Node::Node() = default;

Node::Node(Edges next) : next_(std::move(next)) {}

NodeHooks& Node::MutableHooks() {
  if (hooks_ == nullptr) hooks_ = std::make_unique<NodeHooks>();
  return *hooks_;
}

// The outermost destructor of a thread drops edges in a loop; those that run inside it only hand
// theirs over. So the depth of the stack does not grow with that of the graph.
Node::~Node() {
  if (dying_edges != nullptr) {
    for (Edge& edge : next_) dying_edges->push_back(std::move(edge));
    return;
  }
  std::vector<Edge> edges;
  dying_edges = &edges;
  for (Edge& edge : next_) edges.push_back(std::move(edge));
  while (!edges.empty()) {
    Edge edge = std::move(edges.back());
    edges.pop_back();
    edge.node.reset();
  }
  dying_edges = nullptr;
}

}  // namespace psd
