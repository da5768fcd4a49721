#pragma once

// Gradients that a context has collected on the workers that own the leaves. Fetches them, and adds
// gradients that were computed outside of psd.

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/executor.h"
#include "core/base/future.h"
#include "core/base/ids.h"
#include "core/dist_autograd/context.h"
#include "core/dist_autograd/dist_autograd.h"
#include "core/dist_autograd/exchange.h"
#include "core/rpc/declared_method.h"
#include "core/rpc/rpc_agent.h"
#include "core/rref/creation_gate.h"
#include "core/rref/rref.h"
#include "core/rref/rref_context.h"
#include "core/store/store.h"
#include "core/store/value.h"
#include "core/tensor/tensor.h"

namespace psd::v1 {
class GradientRequest;
class PushedGradient;
}  // namespace psd::v1

namespace psd::services {

// Client and server side of the "gradient.*" methods. Thread-safe. All client functions also fail
// with the errors of the call (RpcAgent::StartCall).
class GradientService {
 public:
  // The parts of the worker that the service uses. They must outlive the service.
  struct Uses {
    rpc::RpcAgent& agent;
    store::Store& store;
    rref::RRefContext& rrefs;
    rref::CreationGate& creations;
    dist_autograd::DistAutograd& autograd;
    dist_autograd::Exchange& exchange;
    Executor& executor;
  };

  // Registers the methods. The agent must not have started.
  explicit GradientService(Uses uses);

  // Fetches the gradient that `context` has collected for a value on its owner: a tensor or a
  // sparse tensor. Errors: NOT_FOUND (the owner does not know the context, or no gradient has
  // come); INVALID_ARGUMENT for a value that collects no gradients.
  Future<store::Value> Fetch(GlobalId context, const rref::RRef& leaf,
                             const rpc::CallOptions& options);

  // Adds a gradient that was computed outside of psd to those that `context` has collected on the
  // parameter's owner, as a backward pass would. `version` is the version of the parameter that the
  // gradient was computed from; 0 if unknown. Errors: INVALID_ARGUMENT, changing nothing, unless
  // the value is a parameter that requires grad, the gradient has the parameter's shape and dtype,
  // and the parameter has reached `version`.
  Future<Unit> Push(const dist_autograd::ContextPtr& context, const rref::RRef& parameter,
                    uint64_t version, const Tensor& gradient, const rpc::CallOptions& options);

  // Adds a gradient to a named parameter of this worker, for clients that are not workers. Errors:
  // NOT_FOUND for the name; PERMISSION_DENIED; those of Push.
  absl::Status PushHere(const rpc::Asker& asker, dist_autograd::ContextState& context,
                        const std::string& parameter, uint64_t version, Tensor gradient) const;

 private:
  // The next functions require that the creation of the value has ended.
  Future<store::Value> SendFetch(GlobalId context, const rref::RRef& leaf,
                                 const rpc::CallOptions& options);
  Future<Unit> SendPush(const dist_autograd::ContextPtr& context, const rref::RRef& parameter,
                        uint64_t version, const Tensor& gradient, const rpc::CallOptions& options);
  // Returns the reason why `leaf`, a value of this worker, has no gradient. `none` is the error
  // that the context has given.
  absl::Status WhyNone(GlobalId leaf, const absl::Status& none) const;
  absl::Status ServeFetch(const rpc::Answer<rpc::Contents>& answer, v1::GradientRequest request);
  // Returns the answer with the gradient that `context` has collected for `leaf`. May wait for a
  // device that has it.
  absl::StatusOr<rpc::Contents> ReadGradient(rpc::ServerCall& call,
                                             const dist_autograd::ContextState& context,
                                             GlobalId leaf) const;
  absl::Status ServePush(const rpc::CallPtr& call, rpc::Beside<v1::PushedGradient> fields);

  const Uses uses_;
};

}  // namespace psd::services
