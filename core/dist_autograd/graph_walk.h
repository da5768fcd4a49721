#pragma once

// Finds, from where gradients enter a worker's graph, where they will leave it.

#include <memory>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "core/autograd/node.h"
#include "core/autograd/node_index.h"
#include "core/base/ids.h"
#include "core/dist_autograd/context.h"
#include "core/dist_autograd/functions.h"

namespace psd::dist_autograd {

// One walk, which may be continued from further starts. It goes no further than it must: not once
// it has met every receive function of the context. Thread-compatible. Keeps its starts, and by
// them what it found.
class GraphWalk {
 public:
  enum class Upstream {
    kIgnore,  // only what this worker's own graph joins
    kFollow,  // from a receive function on to the own sends that its tensors came from
  };
  // `self`: this worker's incarnation. What it sent to itself is always followed.
  GraphWalk(const ContextState& context, Incarnation self, Upstream upstream)
      : context_(context), self_(self), upstream_(upstream) {}

  // Errors: INVALID_ARGUMENT for an upstream message that this worker never sent.
  absl::Status From(std::shared_ptr<Node> start);
  // No further starts will come: gives the nodes free for the walks after it.
  void End() { visited_.Clear(); }

  // Receive functions of other workers' messages, each once, in the order in which they were found.
  const std::vector<const RecvFunction*>& receives() const { return receives_; }
  // Own messages that will receive gradients if those do.
  const std::vector<GlobalId>& own_messages() const { return own_messages_; }

 private:
  void Visit(Node* node);
  absl::Status Found(const RecvFunction& recv);
  absl::Status FollowOwn(GlobalId message);

  const ContextState& context_;
  const Incarnation self_;
  const Upstream upstream_;
  std::vector<std::shared_ptr<Node>> starts_;  // shared with the graph
  NodeIndex visited_;
  absl::flat_hash_set<GlobalId> own_;
  std::vector<Node*> open_;  // met, but not what is behind them
  size_t found_ = 0;         // receive functions of the context
  std::vector<const RecvFunction*> receives_;
  std::vector<GlobalId> own_messages_;
};

}  // namespace psd::dist_autograd
