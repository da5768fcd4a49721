#pragma once

// The local engine: walks the graph backward. It counts each node's dependencies, adds up the
// gradients that arrive at a node, and runs the node when all of them have arrived.

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

// One backward pass over one graph. It begins at nodes that are given to the constructor, its
// starts, and each start runs once it is fed. In a local backward all starts are roots and are fed
// at once. In distributed autograd send functions are starts too; they are fed as gradients arrive
// from other workers.
//
// Thread-safe. Only one thread at a time runs nodes, without a lock held: a Feed runs them on its
// own thread, unless another Feed is running nodes; then that one runs these too.
class GraphPass {
 public:
  // Walks the graph from `starts` and counts one dependency for each edge. A node that appears
  // several times among the starts must be fed as many times. `context.sink` must outlive the pass.
  // Requires: no start is null.
  GraphPass(std::vector<std::shared_ptr<Node>> starts, PassContext context);

  // Gives a start its gradients, one for each of the node's inputs; an undefined tensor means that
  // there is no gradient for the input. An empty vector means that there are none at all: if no
  // other gradients come, the node is not run, but the nodes behind it still learn that they need
  // not wait for it. Runs all nodes that became ready, or leaves them to the thread that is running
  // nodes. Errors: the first error of a node ends the pass; the call that ran that node and all
  // later calls return the error. INVALID_ARGUMENT for a node that is not a start, or that was fed
  // often enough.
  absl::Status Feed(const std::shared_ptr<Node>& start, Tensors gradients) PSD_EXCLUDES(mutex_);

  // Ends the pass with the error `status`, unless it has ended. No further nodes are run.
  void Fail(absl::Status status) PSD_EXCLUDES(mutex_);

  // Whether the pass is complete: all starts were fed, all nodes have run, and there was no error.
  bool Finished() const PSD_EXCLUDES(mutex_);
  // Frees the bookkeeping for the nodes if all of them have run. To be called at a time when nobody
  // waits, so that the destructor has less to do later.
  void Forget() PSD_EXCLUDES(mutex_);
  absl::Status status() const PSD_EXCLUDES(mutex_);

 private:
  struct NodeState {
    Node* node = nullptr;
    int32_t pending = 0;  // arrivals that are still to come, along edges and from feeds
    int32_t feeds = 0;    // how many of these are feeds
    uint32_t inputs = 0;  // their sums start at first_sum
    // 32 bits are enough: a graph with 2^32 edges would not fit into memory.
    uint32_t first_sum = 0;
    uint32_t first_target = 0;  // the targets of next() start at first_target
    bool any = false;           // a defined gradient has arrived
    bool last = false;          // a leaf without hooks: it takes gradients wherever they are
  };
  struct Fed {
    NodeState* start;
    Tensors gradients;
  };

  // Returns the number of `node`. A new node gets a number and a state.
  uint32_t Found(Node* node);
  // Checks one feed of `start` with `gradients` gradients, and counts it.
  absl::StatusOr<NodeState*> TakeFeed(Node* start, size_t gradients) PSD_REQUIRES(mutex_);

  // The following functions are called only by the thread that runs nodes.
  // Runs the nodes that were fed until nothing is left or the pass has ended.
  absl::Status RunFed() PSD_EXCLUDES(mutex_);
  absl::Status RunAll(std::vector<Fed> fed);
  // Runs a node with the gradients that arrived, and passes its results on to the next nodes.
  absl::Status Run(const NodeState& state);
  absl::Status ApplyWithHooks(Node& node, absl::Span<Tensor> gradients,
                              absl::Span<Tensor> results) const;
  absl::Status PassOn(const NodeState& state, absl::Span<const Edge> next,
                      absl::Span<Tensor> results);
  absl::Status Deposit(NodeState& to, size_t input, Tensor&& gradient);
  // Counts one arrival at a node. The node becomes ready if it was the last one.
  void Arrived(NodeState& state);

  mutable Mutex mutex_;  // leaf: no node and no kernel runs under it
  const PassContext context_;
  const std::vector<std::shared_ptr<Node>> starts_;  // keeps the graph alive
  std::vector<Fed> fed_ PSD_GUARDED_BY(mutex_);      // feeds that no thread has taken yet
  bool running_ PSD_GUARDED_BY(mutex_) = false;      // a thread runs nodes
  bool all_run_ PSD_GUARDED_BY(mutex_);
  absl::Status status_ PSD_GUARDED_BY(mutex_);
  std::atomic<bool> ended_{false};  // whether status_ is an error

  // The numbers of nodes in states_. Complete after the constructor, empty after Forget.
  NodeIndex numbers_;
  // The following members belong to the thread that runs nodes, except NodeState::feeds, which
  // mutex_ guards. The first three keep their size from the constructor to Forget.
  std::vector<NodeState> states_;
  GradientSums sums_;              // gradients so far, by node and input
  std::vector<uint32_t> targets_;  // for each edge, the number of the node that it points to
  std::vector<NodeState*> ready_;  // nodes that wait for nothing
  std::vector<Tensor> results_;    // results of the node that runs; undefined between two nodes
  int64_t left_ = 0;               // nodes that have neither run nor been passed over
};

// A place where a backward pass starts.
struct Root {
  Variable output;
  Tensor gradient;  // has the shape and dtype of `output`
};

// Returns roots for losses, each with the gradient 1.
// Errors: INVALID_ARGUMENT, naming the root's number, unless there is at least one loss and each is
// ok, requires grad, is not a leaf, and has exactly one element (and any rank).
absl::StatusOr<std::vector<Root>> LossRoots(const std::vector<Variable>& losses);
// Returns roots with given gradients, which were computed elsewhere, one for each output. Errors:
// INVALID_ARGUMENT, naming the root's number, unless there is at least one output, each is ok and
// requires grad, and each gradient has its output's shape and dtype.
absl::StatusOr<std::vector<Root>> GivenRoots(const std::vector<Variable>& outputs,
                                             const std::vector<Tensor>& gradients);

// Returns the gradients to feed to the root's node.
Tensors SeedOf(const Root& root);

// Runs a local backward from LossRoots(losses) and passes the gradients of leaves to `sink`. A loss
// that is given twice counts twice. With `retain_graph`, saved values are kept for another
// backward.
// Errors: those of LossRoots and of the nodes.
absl::Status Backward(const std::vector<Variable>& losses, GradientSink& sink,
                      bool retain_graph = false);

}  // namespace psd
