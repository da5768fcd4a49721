#pragma once

// The local engine: counts dependencies, runs nodes when their gradients are complete, adds up.

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/autograd/gradient_sum.h"
#include "core/autograd/node.h"
#include "core/autograd/node_index.h"
#include "core/autograd/variable.h"
#include "core/base/mutex.h"
#include "core/tensor/tensor.h"

namespace psd {

// One pass over one graph. Gradients may enter over time: from roots at once, and from outside
// (another worker) through nodes that were announced when the pass began. A local backward is a
// pass whose starts all are roots; distributed autograd announces its send functions.
//
// Thread-safe; each Feed runs what became ready on its caller's thread, without a lock held.
class GraphPass {
 public:
  // Walks the graph from `starts` and counts one dependency per edge found. A node that appears
  // several times among the starts must be fed as often. `context.sink` must outlive the pass.
  // Requires: no start is null.
  GraphPass(std::vector<std::shared_ptr<Node>> starts, PassContext context);

  // Gives a start its gradients (one per input of the node, undefined = none; an empty vector =
  // none at all, the node is passed over but its dependants are told). Runs all that became ready.
  // Errors: the first error of any node ends the pass: this and all later calls return it.
  // INVALID_ARGUMENT for a node that is no start or was fed often enough.
  absl::Status Feed(const std::shared_ptr<Node>& start, Tensors gradients);

  // Ends the pass with `status` unless it has ended; nodes not yet started are not run.
  void Fail(absl::Status status);

  // All starts fed and all nodes run.
  bool Finished() const;
  absl::Status status() const;

 private:
  struct NodeState {
    Node* node = nullptr;
    int pending = 0;   // gradients still to come along edges and from outside
    int feeds = 0;     // of these, from outside
    int inputs = 0;    // sums_[first_sum] and so on are theirs
    bool any = false;  // a defined gradient has arrived
    size_t first_sum = 0;
    size_t first_target = 0;  // targets_[first_target] and so on belong to next()
  };

  // The number of `node`, which is noted in `open` when it is new.
  size_t Found(Node* node, std::vector<size_t>& open);
  // Counts one feed of `start` with that many gradients.
  absl::StatusOr<NodeState*> TakeFeed(Node* start, size_t gradients) PSD_EXCLUDES(mutex_);
  GradientSum& SumAt(const NodeState& to, int input) {
    return sums_[to.first_sum + static_cast<size_t>(input)];
  }
  // Leaves a gradient where there is none yet; false if there is one, to which it must be added.
  bool TryDeposit(NodeState& to, int input, Tensor& gradient) PSD_REQUIRES(mutex_);
  // Adds to the sum at an input.
  absl::Status Add(NodeState& to, int input, Tensor gradient) PSD_EXCLUDES(mutex_);
  // One of the gradients that the node waits for has come.
  static void Arrived(NodeState& state, std::vector<NodeState*>& ready);
  // The node itself, between the hooks that hang on it.
  absl::StatusOr<Tensors> Run(Node& node, Tensors& gradients) const;
  // Runs `ready` and all that becomes ready by it.
  absl::Status RunReady(std::vector<NodeState*>& ready) PSD_EXCLUDES(mutex_);
  // The sums for a node, and whether there are any.
  absl::StatusOr<bool> TakeGradients(NodeState& state, Tensors& gradients) PSD_EXCLUDES(mutex_);
  // Hands the results of a node on; it has run then.
  absl::Status PassOn(const NodeState& state, Tensors& results, std::vector<NodeState*>& ready)
      PSD_EXCLUDES(mutex_);

  mutable Mutex mutex_;  // leaf: no node and no kernel runs under it
  const PassContext context_;
  const std::vector<std::shared_ptr<Node>> starts_;  // keeps the graph alive
  // Of these four, no element comes or goes once the pass is made. What changes in those of
  // states_ and sums_ is guarded by mutex_.
  NodeIndex numbers_;  // in states_
  std::vector<NodeState> states_;
  std::vector<GradientSum> sums_;  // so far, by node and input
  std::vector<size_t> targets_;    // for each edge, the number of the node that it points to
  int64_t outstanding_ PSD_GUARDED_BY(mutex_) = 0;  // nodes neither run nor passed over
  absl::Status status_ PSD_GUARDED_BY(mutex_);
};

// Where a backward starts.
struct Root {
  Variable output;
  Tensor gradient;  // of its shape and dtype
};

// Losses: gradient 1 at each.
// Errors: INVALID_ARGUMENT naming the root's number, unless there is at least one and each is ok,
// requires grad, is no leaf and has exactly one element (any rank).
absl::StatusOr<std::vector<Root>> LossRoots(const std::vector<Variable>& losses);
// Gradients that were computed elsewhere, one per output.
// Errors: INVALID_ARGUMENT naming the root's number, unless there is at least one and each output
// is ok and requires grad, and its gradient has its shape and dtype.
absl::StatusOr<std::vector<Root>> GivenRoots(const std::vector<Variable>& outputs,
                                             const std::vector<Tensor>& gradients);

// What the root's node is fed.
Tensors SeedOf(const Root& root);

// A local backward from LossRoots(losses) (a loss given twice counts twice): gradients of leaves to
// `sink`.
absl::Status Backward(const std::vector<Variable>& losses, GradientSink& sink,
                      bool retain_graph = false);

}  // namespace psd
