#pragma once

// The graph that backward walks. A node is an operation that was done; its edges lead to the nodes
// that made its arguments.

#include <atomic>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/autograd/edge.h"
#include "core/base/ids.h"
#include "core/tensor/sparse_tensor.h"
#include "core/tensor/tensor.h"

namespace psd {

class NodeHooks;
class NodeIndex;

using Edges = std::vector<Edge>;
// The gradients of a node's results or of its arguments. An undefined tensor means "no gradient".
using Tensors = absl::InlinedVector<Tensor, 2>;

// Describes a leaf to a GradientSink. The key of a parameter is the id of its value. A leaf that a
// trainer made itself has a key that is unique in its process only, with incarnation 0.
struct LeafInfo {
  GlobalId key;
  Shape shape;
  DType dtype = DType::kF32;
  uint64_t version = 0;  // the version of the parameter that was read; 0 if it is not a parameter
};

// Collects the gradients that reach leaves in one pass. Thread-safe.
class GradientSink {
 public:
  virtual ~GradientSink() = default;
  // Takes the gradient of a leaf, summed over all paths. Called at most once per leaf and pass. The
  // gradient is contiguous and has the leaf's shape and dtype. Its elements may be shared, so the
  // sink must copy them before it adds to them.
  virtual absl::Status Accumulate(const LeafInfo& leaf, Tensor gradient) = 0;
  // Takes the gradient of rows of a leaf that were looked up. Called once per lookup. The leaf's
  // gradient is the sum of everything that is passed to this function and to Accumulate. Errors:
  // FAILED_PRECONDITION if the sink takes no sparse gradients.
  virtual absl::Status AccumulateSparse(const LeafInfo& leaf, SparseTensor gradient);
};

// The error for a second backward through the operator `name`: FAILED_PRECONDITION.
absl::Status SavedValuesFreed(absl::string_view name);

// The part of a pass that the nodes see.
struct PassContext {
  GradientSink* sink = nullptr;
  bool retain_graph = false;
};

// One differentiable operation that was done. It is built by one thread and then immutable, except
// that hooks (hooks.h) are added and saved values are freed. Apply may run on any thread, and for
// several passes at the same time.
class Node {
 public:
  Node() = default;
  virtual ~Node() = default;
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  // For example "Linear", "AccumulateGrad" or "Recv".
  virtual absl::string_view Name() const = 0;
  // The number of gradients that it takes, which is the number of the operation's results.
  virtual int NumInputs() const { return 1; }

  // Computes the gradients of the operation's arguments from `gradients`, the gradients of its
  // results. `results` has one element for each edge of next(). All are undefined before the call,
  // and those for edges without a node may stay undefined. An undefined tensor means "no gradient"
  // in both. The node may move tensors out of `gradients`. Frees saved values unless
  // `pass.retain_graph`. Errors: SavedValuesFreed if they were freed before; those of the
  // computation.
  virtual absl::Status Apply(const PassContext& pass, absl::Span<Tensor> gradients,
                             absl::Span<Tensor> results) = 0;

  // The description of the leaf if this node collects a leaf's gradient, otherwise null.
  virtual const LeafInfo* leaf() const { return nullptr; }

  // Whether Apply is called even if none of the gradients is defined; other nodes are then skipped.
  // A node needs this if it must tell somebody outside the graph that no gradient will come.
  virtual bool RunsWithoutGradients() const { return false; }

  // The places that the gradients of the arguments go to. They do not change once other code can
  // see the node.
  virtual absl::Span<const Edge> next() const { return {}; }

  // Null if the node has no hooks.
  const NodeHooks* hooks() const { return hooks_.get(); }
  // Requires: no pass runs over the node.
  NodeHooks& MutableHooks();

 protected:
  // Releases the nodes that `edges` lead to. The destructor of every class that holds edges must
  // call it, so that a deep graph is destroyed without recursion.
  static void Drop(absl::Span<Edge> edges);

 private:
  friend class NodeIndex;
  struct DeleteHooks {  // defined in node.cc, where NodeHooks is a complete type
    void operator()(NodeHooks* hooks) const;
  };

  std::unique_ptr<NodeHooks, DeleteHooks> hooks_;
  std::atomic<const NodeIndex*> claimed_by_{nullptr};
  size_t number_ = 0;  // the node's number in the index that claimed it; used only by that index
};

// A node with any number of edges.
class ListNode : public Node {
 public:
  explicit ListNode(Edges next = {}) : next_(std::move(next)) {}
  ~ListNode() override { Drop(absl::MakeSpan(next_)); }

  absl::Span<const Edge> next() const override { return next_; }

 protected:
  Edges next_;
};

}  // namespace psd
