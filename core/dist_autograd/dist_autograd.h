#pragma once

// Distributed autograd on one worker: contexts, the attachments of calls in them, and backward.

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/device.h"
#include "core/base/executor.h"
#include "core/base/future.h"
#include "core/base/ids.h"
#include "core/base/memory_budget.h"
#include "core/base/timer.h"
#include "core/dist_autograd/backward_options.h"
#include "core/dist_autograd/context.h"
#include "core/dist_autograd/gradient_messages.h"
#include "core/rpc/rpc_agent.h"

namespace psd::dist_autograd {

// Thread-safe. Registers its methods ("autograd.gradient", "autograd.release", …) with the
// agent before the agent starts. A context ends when it is released, with the session of its
// creator, and with the session of the worker that brought it here.
class DistAutograd {
 public:
  // Requires: `agent`, `ids`, `timers`, `executor` and what `messages` points to outlive the
  // result. Contexts that peers bring are charged to `memory`; if it is null, they are not charged.
  // Without `messages`, gradients on devices are copied.
  static std::unique_ptr<DistAutograd> Create(rpc::RpcAgent& agent, IdSource& ids,
                                              TimerQueue& timers, Executor& executor,
                                              std::shared_ptr<MemoryBudget> memory = nullptr,
                                              GradientMessages::Uses messages = {});
  ~DistAutograd();
  DistAutograd(const DistAutograd&) = delete;
  DistAutograd& operator=(const DistAutograd&) = delete;

  std::shared_ptr<ContextState> NewContext();
  // Errors: NOT_FOUND "could not find autograd context … on …".
  absl::StatusOr<std::shared_ptr<ContextState>> Find(GlobalId context) const;
  // Erases a context here and on every worker that knows it, without waiting for them.
  void Release(GlobalId context);

  // The tag of the attachments that the following functions make and read.
  static constexpr uint32_t kTag = kAutogradTag;

  // For the caller, before sending: attaches to `request` what the callee needs, and binds it to
  // the session there that has the context's part, if that is known: in another one there would be
  // no such context, or, after a restart of the callee, a new part of it. `variables` are all
  // tensors of the request, in order. Errors: NOT_FOUND for a released context; the reason of the
  // loss for one that has lost a part; RESOURCE_EXHAUSTED.
  absl::Status WrapRequest(const std::shared_ptr<ContextState>& context, const std::string& callee,
                           const std::vector<Variable>& variables, rpc::Request& request);
  // For the callee, after receiving: makes variables of the request's tensors. Those that require
  // grad belong to a recv function. The context exists here from now on, under the caller's
  // session. It is null for a request that was made outside a context.
  struct Received {
    std::shared_ptr<ContextState> context;
    std::vector<Variable> variables;
  };
  absl::StatusOr<Received> UnwrapRequest(const rpc::ServerCall& call, std::vector<Tensor> tensors);
  // For the callee, before answering: returns the attachments of the answer, or none if no tensor
  // requires grad. Errors: RESOURCE_EXHAUSTED.
  absl::StatusOr<std::vector<rpc::Attachment>> WrapReply(
      const std::shared_ptr<ContextState>& context, const std::vector<Variable>& variables);
  // As above, for tensors that are leaves of this worker, such as parameters. `leaves` has one
  // element for each tensor of the answer; a leaf without a key does not require grad. `device` is
  // the one that all leaves are on, and on which their gradients are wanted; null if they are on
  // the host, or on several.
  absl::StatusOr<std::vector<rpc::Attachment>> WrapLeaves(
      const std::shared_ptr<ContextState>& context, std::vector<LeafInfo> leaves,
      Device* device = nullptr);
  // For the caller, after the answer: makes variables of its tensors. Without a context they are
  // constants.
  absl::StatusOr<std::vector<Variable>> UnwrapReply(const std::shared_ptr<ContextState>& context,
                                                    const rpc::Reply& reply,
                                                    std::vector<Tensor> tensors);

  // Runs backward with gradient 1 at each root. Gradients of leaves are added to the context on the
  // workers that own the leaves. The future is set when all workers that take part are done.
  // Errors: INVALID_ARGUMENT (a wrong root, see LossRoots; a timeout that is not positive),
  // NOT_FOUND (a released context), FAILED_PRECONDITION (a pass is running in this context),
  // DEADLINE_EXCEEDED naming the messages whose gradients are missing, and the errors of nodes and
  // workers ("error on owner1: …"). All workers that take part are told of a failure.
  Future<Unit> Backward(const std::shared_ptr<ContextState>& context,
                        const std::vector<Variable>& roots, const BackwardOptions& options);
  // As Backward, with given gradients of the outputs instead of 1 (see GivenRoots). For a trainer
  // that computes the rest of its forward elsewhere.
  Future<Unit> BackwardFrom(const std::shared_ptr<ContextState>& context,
                            const std::vector<Variable>& outputs,
                            const std::vector<Tensor>& gradients, const BackwardOptions& options);

  struct Stats {
    size_t contexts = 0;
    size_t running_passes = 0;
  };
  Stats stats() const;
  std::vector<std::shared_ptr<ContextState>> Contexts() const;

 private:
  class Core;

  explicit DistAutograd(std::shared_ptr<Core> core);

  const std::shared_ptr<Core> core_;  // shared with the agent's callbacks and running passes
};

}  // namespace psd::dist_autograd
