#pragma once

// Finds the recv functions through which gradients that enter a worker's graph will leave it.

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

// One walk over the graph, which may be continued from further starts. It stops early once it has
// met every recv function of the context. Thread-compatible. Keeps the starts, and thereby the
// nodes that it found, alive.
class GraphWalk {
 public:
  enum class Upstream {
    kIgnore,  // follows only edges of this worker's own graph
    kFollow,  // also continues from a recv function to the own sends that its tensors depend on
  };
  // `self` is this worker's incarnation. Messages that it sent to itself are always followed.
  GraphWalk(const ContextState& context, Incarnation self, Upstream upstream)
      : context_(context), self_(self), upstream_(upstream) {}

  // Errors: INVALID_ARGUMENT for an upstream message that this worker never sent.
  absl::Status From(std::shared_ptr<Node> start);
  // Releases the marks on visited nodes for later walks. No further start may follow.
  void End() { visited_.Clear(); }

  // The recv functions of other workers' messages, each once, in the order in which they were
  // found.
  const std::vector<const RecvFunction*>& receives() const { return receives_; }
  // The messages of this worker that will receive gradients if the recv functions do.
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
  std::vector<Node*> open_;  // nodes whose successors were not visited yet
  size_t found_ = 0;         // number of recv functions of the context that were found
  std::vector<const RecvFunction*> receives_;
  std::vector<GlobalId> own_messages_;
};

}  // namespace psd::dist_autograd
