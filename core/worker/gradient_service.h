#pragma once

// Gradients of a context on the workers that own their leaves: read, and handed in from outside.

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "core/base/future.h"
#include "core/base/ids.h"
#include "core/dist_autograd/context.h"
#include "core/rpc/rpc_agent.h"
#include "core/rref/rref.h"
#include "core/store/store.h"
#include "core/store/value.h"
#include "core/tensor/tensor.h"
#include "core/worker/exchange.h"

namespace psd::worker {

// Adds a gradient that was computed outside of psd to what `context` has collected, as a backward
// would. `version`: of the parameter, that it was computed from; 0: unknown.
// Errors: INVALID_ARGUMENT, changing nothing, unless the entry is a parameter that requires grad,
// the gradient has its shape and dtype, and it has reached that version.
absl::Status AddGradient(dist_autograd::ContextState& context, const store::Entry& entry,
                         uint64_t version, Tensor gradient);

// Both ends of the "gradient.*" methods. Thread-safe. Errors: those of the call
// (RpcAgent::StartCall), and as said.
class GradientService {
 public:
  // Registers the methods; `runtime` outlives the service and has not started.
  explicit GradientService(Runtime& runtime);

  // What `context` has collected for a value, on its owner: a tensor, or a sparse one.
  // Errors: NOT_FOUND (the owner does not know the context; no gradient has come),
  // INVALID_ARGUMENT for what collects none.
  Future<store::Value> Fetch(GlobalId context, const rref::RRef& leaf,
                             const rpc::CallOptions& options);

  // AddGradient on the parameter's owner.
  Future<Unit> Push(const ContextPtr& context, const rref::RRef& parameter, uint64_t version,
                    const Tensor& gradient, const rpc::CallOptions& options);

 private:
  using CallPtr = std::shared_ptr<rpc::ServerCall>;
  // Require: the creation of the value has ended.
  Future<store::Value> SendFetch(GlobalId context, const rref::RRef& leaf,
                                 const rpc::CallOptions& options);
  Future<Unit> SendPush(const ContextPtr& context, const rref::RRef& parameter, uint64_t version,
                        const Tensor& gradient, const rpc::CallOptions& options);
  // Why `leaf`, of this worker, has no gradient, where `none` says that it has none.
  absl::Status WhyNone(GlobalId leaf, const absl::Status& none) const;
  void ServeFetch(const CallPtr& call);
  void ServePush(const CallPtr& call);
  absl::Status TakePush(const CallPtr& call);

  Runtime& runtime_;
};

}  // namespace psd::worker
