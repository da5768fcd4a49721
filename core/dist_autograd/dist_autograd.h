#pragma once

// Distributed autograd on one worker: contexts, what calls carry of them, and backward.

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/executor.h"
#include "core/base/future.h"
#include "core/base/ids.h"
#include "core/base/timer.h"
#include "core/dist_autograd/backward_options.h"
#include "core/dist_autograd/context.h"
#include "core/rpc/rpc_agent.h"

namespace psd::dist_autograd {

// Thread-safe. Registers its methods ("autograd.gradient", "autograd.release", …) with the
// agent before the agent starts. A context ends when it is released, with the session of its
// creator, and with the session of the worker that brought it here.
class DistAutograd {
 public:
  // `agent`, `ids`, `timers` and `executor` outlive it.
  static std::unique_ptr<DistAutograd> Create(rpc::RpcAgent& agent, IdSource& ids,
                                              TimerQueue& timers, Executor& executor);
  virtual ~DistAutograd() = default;

  virtual std::shared_ptr<ContextState> NewContext() = 0;
  // Errors: NOT_FOUND "could not find autograd context … on …".
  virtual absl::StatusOr<std::shared_ptr<ContextState>> Find(GlobalId context) const = 0;
  // Erases it here and on every worker that knows it, without waiting for them.
  virtual void Release(GlobalId context) = 0;

  // The tag of the attachment that the following make and read.
  static constexpr uint32_t kTag = kAutogradTag;

  // Caller, sending: `variables` are all tensors of the request, in order.
  virtual absl::StatusOr<rpc::Attachment> WrapRequest(const std::shared_ptr<ContextState>& context,
                                                      const std::string& callee,
                                                      const std::vector<Variable>& variables) = 0;
  // Callee, receiving: tensors become variables with the history that the attachment says, and the
  // context exists here from now on, under the caller's session. Null context for a request without
  // one.
  struct Received {
    std::shared_ptr<ContextState> context;
    std::vector<Variable> variables;
  };
  virtual absl::StatusOr<Received> UnwrapRequest(const rpc::ServerCall& call,
                                                 std::vector<Tensor> tensors) = 0;
  // Callee, answering. Nothing to attach when no tensor requires grad.
  virtual std::vector<rpc::Attachment> WrapReply(const std::shared_ptr<ContextState>& context,
                                                 const std::vector<Variable>& variables) = 0;
  // The same for tensors that are this worker's own leaves, as parameters are: no graph leads to
  // them. One entry per tensor of the answer; without a key: requires no grad.
  virtual std::vector<rpc::Attachment> WrapLeaves(const std::shared_ptr<ContextState>& context,
                                                  std::vector<LeafInfo> leaves) = 0;
  // Caller, receiving the answer. Outside a context the tensors are constants.
  virtual absl::StatusOr<std::vector<Variable>> UnwrapReply(
      const std::shared_ptr<ContextState>& context, const rpc::Reply& reply,
      std::vector<Tensor> tensors) = 0;

  // Gradient 1 at each root; gradients of leaves are added to the contexts of the workers that own
  // them. Done when every worker concerned is done.
  // Errors: INVALID_ARGUMENT (roots: LossRoots; timeout), NOT_FOUND (released context),
  // FAILED_PRECONDITION (a pass is running in this context), DEADLINE_EXCEEDED naming the sends
  // that are missing, what a node or a worker says ("error on owner1: …"). A failure is told to
  // every worker that takes part.
  virtual Future<Unit> Backward(const std::shared_ptr<ContextState>& context,
                                const std::vector<Variable>& roots,
                                const BackwardOptions& options) = 0;
  // The same with `gradients` instead of 1 (GivenRoots): outputs are what the rest of the forward,
  // done elsewhere, has started from.
  virtual Future<Unit> BackwardFrom(const std::shared_ptr<ContextState>& context,
                                    const std::vector<Variable>& outputs,
                                    const std::vector<Tensor>& gradients,
                                    const BackwardOptions& options) = 0;

  struct Stats {
    size_t contexts = 0;
    size_t running_passes = 0;
  };
  virtual Stats stats() const = 0;
  virtual std::vector<std::shared_ptr<ContextState>> Contexts() const = 0;
};

}  // namespace psd::dist_autograd
