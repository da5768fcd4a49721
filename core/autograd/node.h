#pragma once

// The graph that backward walks: nodes, joined by edges from a result to what it was made of.

#include <atomic>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/base/ids.h"
#include "core/tensor/sparse_tensor.h"
#include "core/tensor/tensor.h"

namespace psd {

class Node;
class NodeHooks;
class NodeIndex;

// "The gradient goes to input `input` of `node`." No node: the gradient is not needed.
struct Edge {
  std::shared_ptr<Node> node;  // shared by all edges that point to it
  int input = 0;

  explicit operator bool() const { return node != nullptr; }
};

using Edges = std::vector<Edge>;
// Tensors of one node: gradients of its results or of its arguments. Undefined: no gradient.
using Tensors = absl::InlinedVector<Tensor, 2>;

// What a leaf is, for whoever collects gradients. The key of a parameter is its value's id; a
// trainer's own leaf has a key of its process only (incarnation 0).
struct LeafInfo {
  GlobalId key;
  Shape shape;
  DType dtype = DType::kF32;
  uint64_t version = 0;  // of the parameter that was read; 0 for a leaf that is none
};

// Collects the gradients that reach leaves in one pass. Thread-safe.
class GradientSink {
 public:
  virtual ~GradientSink() = default;
  // Called at most once per leaf and pass, with the sum over all paths: contiguous, of the leaf's
  // shape and dtype. Others may hold the same elements: to add to them, copy them first.
  virtual absl::Status Accumulate(const LeafInfo& leaf, Tensor gradient) = 0;
  // The same for rows of a leaf that were looked up; called once per lookup. The sum of both kinds
  // is the leaf's gradient. Errors: FAILED_PRECONDITION where this sink takes none.
  virtual absl::Status AccumulateSparse(const LeafInfo& leaf, SparseTensor gradient);
};

// FAILED_PRECONDITION: a second backward through the operator `name`.
absl::Status SavedValuesFreed(absl::string_view name);

// What one pass hands to the nodes it runs.
struct PassContext {
  GradientSink* sink = nullptr;
  bool retain_graph = false;
};

// One differentiable operation that was done. Built by one thread, then immutable but for hooks
// (hooks.h) and for saved values that are given up. Apply may run on any thread, and for several
// passes at once.
class Node {
 public:
  Node() = default;
  virtual ~Node() = default;
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  // "Linear", "AccumulateGrad", "Recv".
  virtual absl::string_view Name() const = 0;
  // How many gradients it takes: the number of results of the operation.
  virtual int NumInputs() const { return 1; }

  // The gradients of the operation's arguments into `results`, one per edge of next(), from those
  // of its results, of which it may take what it likes. An undefined tensor stands for "no
  // gradient" on either side: all of `results` come so, and those for edges without a node may stay
  // so. Gives up saved values afterwards unless `pass.retain_graph`. Errors: SavedValuesFreed when
  // they were given up before; whatever the math says.
  virtual absl::Status Apply(const PassContext& pass, absl::Span<Tensor> gradients,
                             absl::Span<Tensor> results) = 0;

  // What a leaf collects gradients for; null for all that have an operation behind them.
  virtual const LeafInfo* leaf() const { return nullptr; }

  // Whether Apply is wanted even when none of its gradients is defined: for a node that must tell
  // somebody outside the graph that none will come. Others are passed over.
  virtual bool RunsWithoutGradients() const { return false; }

  // Where the gradients of the arguments go. The same as long as the node lives, but for those that
  // are given up before the node is seen by others.
  virtual absl::Span<const Edge> next() const { return {}; }

  // Null where nobody has added any.
  const NodeHooks* hooks() const { return hooks_.get(); }
  // Requires: no pass runs over the node.
  NodeHooks& MutableHooks();

 protected:
  // Lets go of the nodes that a dying node leads to. Called by the destructor of every class that
  // holds edges, so that a deep graph is torn down without recursion.
  static void Drop(absl::Span<Edge> edges);

 private:
  friend class NodeIndex;
  struct DeleteHooks {  // where they are a complete type
    void operator()(NodeHooks* hooks) const;
  };

  std::unique_ptr<NodeHooks, DeleteHooks> hooks_;
  std::atomic<const NodeIndex*> claimed_by_{nullptr};
  size_t number_ = 0;  // in the index that claimed the node, which alone uses it
};

// A node with as many edges as there happen to be.
class ListNode : public Node {
 public:
  explicit ListNode(Edges next = {}) : next_(std::move(next)) {}
  ~ListNode() override { Drop(absl::MakeSpan(next_)); }

  absl::Span<const Edge> next() const override { return next_; }

 protected:
  Edges next_;
};

}  // namespace psd
