#pragma once

// Optimizers on owners: create, step.

#include <string>
#include <vector>

#include "core/base/future.h"
#include "core/optim/owner_optimizer.h"
#include "core/rpc/rpc_agent.h"
#include "core/rref/rref.h"
#include "core/worker/exchange.h"

namespace psd::worker {

// Both ends of the "optimizer.*" methods. Thread-safe.
class OptimizerService {
 public:
  // Registers the methods; `runtime` outlives the service and has not started.
  explicit OptimizerService(Runtime& runtime);

  // The optimizer of `parameters` (all on `owner`), shared under `name` or private if it is empty.
  // Errors: FAILED_PRECONDITION when the name exists with other parameters or options;
  // INVALID_ARGUMENT; RESOURCE_EXHAUSTED.
  Future<rref::RRef> Create(const std::string& owner, const std::string& name,
                            const optim::OptimizerSpec& spec,
                            const std::vector<rref::RRef>& parameters,
                            const rpc::CallOptions& options);

  // Applies what `context` has collected on the optimizer's owner.
  Future<optim::StepResult> Step(const rref::RRef& optimizer, GlobalId context, GlobalId step,
                                 const rpc::CallOptions& options);

 private:
  using CallPtr = std::shared_ptr<rpc::ServerCall>;
  void ServeCreate(const CallPtr& call);
  void ServeStep(const CallPtr& call);

  Runtime& runtime_;
};

}  // namespace psd::worker
