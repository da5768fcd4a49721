#pragma once

// Part 3 of client/psd.h: distributed autograd.

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/worker.h"
#include "core/autograd/variable.h"
#include "core/base/ids.h"
#include "core/dist_autograd/backward_options.h"
#include "core/rref/rref.h"
#include "core/store/value.h"
#include "core/tensor/sparse_tensor.h"
#include "core/tensor/tensor.h"

namespace psd {

// One distributed-autograd pass: records the calls that are made in it, then collects gradients on
// the workers that own the leaves. Make one for each train step. The destructor releases what the
// context holds on every worker. Move-only. Thread-safe, except for moving.
class Context {
 public:
  Context(Context&&) noexcept;
  Context& operator=(Context&&) noexcept;
  ~Context();

  // Returns no id (GlobalId::IsNone) if this context was moved from. All other calls on such a
  // context fail with FAILED_PRECONDITION.
  GlobalId id() const;

  // Computes the gradients of the sum of `roots`, which have one element each, with respect to all
  // leaves that require grad. Each gradient is added to this context on the worker that owns the
  // leaf. Returns when all workers are done. May be repeated; gradients accumulate.
  // Errors: INVALID_ARGUMENT (no roots; a root that has several elements, is a leaf, or does not
  // require grad; a timeout that is not positive); FAILED_PRECONDITION (another pass is running in
  // this context); DEADLINE_EXCEEDED naming the gradients that are missing; and the errors of
  // operators and of the workers that take part.
  absl::Status Backward(const std::vector<Variable>& roots,
                        const dist_autograd::BackwardOptions& options = {});
  // Runs Backward from a root that any worker owns. Errors: also INVALID_ARGUMENT if it is no
  // tensor.
  absl::Status Backward(const RRef& root, const dist_autograd::BackwardOptions& options = {});

  // ---- gradients from outside, for a trainer whose forward runs in another framework

  // Runs backward from several tensors that came in this context: parameters that ToHere fetched,
  // or results of calls. `gradients` holds the gradient of the loss with respect to each output, of
  // the same shape and dtype, where Backward would start with 1. Gradients of parameters count for
  // the versions that were fetched, even if the owner has stepped since. An owner on the same
  // device may read a gradient there in place, until this context has ended there: nobody may write
  // to gradients on a shared device (WorkerOptions::share_devices) any more. Errors: as Backward;
  // INVALID_ARGUMENT naming the output that a gradient does not fit.
  absl::Status BackwardFrom(const std::vector<Variable>& outputs,
                            const std::vector<Tensor>& gradients,
                            const dist_autograd::BackwardOptions& options = {});
  // Adds a gradient to those that this context collects on the owner of `parameter`. No tensor of
  // this context is needed. `version` is the version that the gradient was computed from, as
  // Worker::Pull returned it; 0 means unknown. The gradient counts once even if the message is
  // retried.
  // Errors: INVALID_ARGUMENT if its shape or dtype is not the parameter's, if the parameter does
  // not require grad, or if it has not reached that version yet.
  absl::Status PushGradient(const RRef& parameter, const Tensor& gradient, uint64_t version);

  // Returns the gradient that this context has collected for a leaf of this trainer, or fetches the
  // gradient of a parameter from its owner.
  // Errors: NOT_FOUND if no gradient has reached it, or this context never reached its owner;
  // INVALID_ARGUMENT for a value that collects none (a constant, the result of an operation, a
  // value that does not require grad), and for a gradient that is sparse.
  absl::StatusOr<Tensor> Gradient(const Variable& leaf) const;
  absl::StatusOr<Tensor> Gradient(const RRef& parameter) const;
  // Fetches a sparse gradient, that is, the gradient of a table or of a parameter that was used
  // only by looking up rows. Ids may repeat. Errors: as Gradient; INVALID_ARGUMENT for a dense
  // gradient.
  absl::StatusOr<SparseTensor> SparseGradient(const RRef& table) const;

 private:
  friend class Worker;
  friend class DistributedOptimizer;
  // client/context_of.h
  friend absl::StatusOr<std::shared_ptr<dist_autograd::ContextState>> StateOf(
      const Context& context);
  absl::Status CheckUsable() const;
  absl::StatusOr<Value> FetchGradient(const RRef& leaf) const;
  Context(std::shared_ptr<Worker::State> worker,
          std::shared_ptr<dist_autograd::ContextState> state);
  std::shared_ptr<Worker::State> worker_;               // shared with the worker
  std::shared_ptr<dist_autograd::ContextState> state_;  // shared with calls in flight
};

}  // namespace psd
