#pragma once

// The local engine: counts dependencies, runs nodes when their gradients are complete, adds up.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
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
// Thread-safe. One thread at a time runs nodes, without a lock held: that of the Feed that found
// none running. It also runs what others feed meanwhile.
class GraphPass {
 public:
  // Walks the graph from `starts` and counts one dependency per edge found. A node that appears
  // several times among the starts must be fed as often. `context.sink` must outlive the pass.
  // Requires: no start is null.
  GraphPass(std::vector<std::shared_ptr<Node>> starts, PassContext context);

  // Gives a start its gradients (one per input of the node, undefined = none; an empty vector =
  // none at all, the node is passed over but its dependants are told). Runs all that became ready,
  // or leaves it to the thread that is running nodes.
  // Errors: the first error of any node ends the pass: the call that ran it and all later ones
  // return it. INVALID_ARGUMENT for a node that is no start or was fed often enough.
  absl::Status Feed(const std::shared_ptr<Node>& start, Tensors gradients) PSD_EXCLUDES(mutex_);

  // Ends the pass with `status` unless it has ended; nodes not yet started are not run.
  void Fail(absl::Status status) PSD_EXCLUDES(mutex_);

  // All starts fed and all nodes run.
  bool Finished() const PSD_EXCLUDES(mutex_);
  // Lets go, if it is finished, of what it noted for every node, so that this need not be done when
  // somebody waits: a destructor has less to do.
  void Forget() PSD_EXCLUDES(mutex_);
  absl::Status status() const PSD_EXCLUDES(mutex_);

 private:
  struct NodeState {
    Node* node = nullptr;
    int32_t pending = 0;        // gradients still to come along edges and from outside
    int32_t feeds = 0;          // of these, announced from outside and not yet fed
    uint32_t inputs = 0;        // sums_[first_sum] and so on are theirs
    uint32_t first_sum = 0;     // a graph has fewer than 2^32 edges: it would not fit into memory
    uint32_t first_target = 0;  // targets_[first_target] and so on belong to next()
    bool any = false;           // a defined gradient has arrived
  };
  struct Fed {
    NodeState* start;
    Tensors gradients;
  };

  // The number of `node`, which joins states_ when it is new.
  uint32_t Found(Node* node);
  // Counts one feed of `start` with that many gradients.
  absl::StatusOr<NodeState*> TakeFeed(Node* start, size_t gradients) PSD_REQUIRES(mutex_);

  // These belong to the thread that runs nodes.
  // Takes what was fed until nothing is left or the pass has ended.
  absl::Status RunFed() PSD_EXCLUDES(mutex_);
  absl::Status RunAll(std::vector<Fed> fed);
  // The node with the gradients that arrived, and hands on what it gives.
  absl::Status Run(const NodeState& state);
  absl::Status ApplyWithHooks(Node& node, absl::Span<Tensor> gradients,
                              absl::Span<Tensor> results) const;
  absl::Status PassOn(const NodeState& state, absl::Span<const Edge> next,
                      absl::Span<Tensor> results);
  absl::Status Deposit(NodeState& to, size_t input, Tensor&& gradient);
  // One of the gradients that the node waits for has come.
  void Arrived(NodeState& state);

  mutable Mutex mutex_;  // leaf: no node and no kernel runs under it
  const PassContext context_;
  const std::vector<std::shared_ptr<Node>> starts_;  // keeps the graph alive
  std::vector<Fed> fed_ PSD_GUARDED_BY(mutex_);      // and not yet taken
  bool running_ PSD_GUARDED_BY(mutex_) = false;      // a thread runs nodes
  bool all_run_ PSD_GUARDED_BY(mutex_);
  absl::Status status_ PSD_GUARDED_BY(mutex_);
  std::atomic<bool> ended_{false};  // status_ is an error

  // Numbers of nodes in states_. Complete once the pass is made, empty when it has forgotten.
  NodeIndex numbers_;
  // Of the thread that runs nodes, but for NodeState::feeds, which mutex_ guards; of the first
  // three, no element comes or goes once the pass is made.
  std::vector<NodeState> states_;
  GradientSums sums_;              // so far, by node and input
  std::vector<uint32_t> targets_;  // for each edge, the number of the node that it points to
  std::vector<NodeState*> ready_;  // have all their gradients
  std::vector<Tensor> results_;    // of the node that runs; undefined between two nodes
  int64_t left_ = 0;               // nodes neither run nor passed over
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
