#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/context_of.h"
#include "client/psd.h"
#include "client/worker_state.h"
#include "core/base/remedy.h"
#include "core/services/gradients/gradient_service.h"
#include "core/services/values/value_service.h"

namespace psd {

Context::Context(std::shared_ptr<Worker::State> worker,
                 std::shared_ptr<dist_autograd::ContextState> state)
    : worker_(std::move(worker)), state_(std::move(state)) {}

Context::Context(Context&&) noexcept = default;

Context& Context::operator=(Context&& other) noexcept {
  Context taken(std::move(other));
  std::swap(worker_, taken.worker_);
  std::swap(state_, taken.state_);
  return *this;
}

Context::~Context() {
  if (state_ != nullptr) worker_->runtime->autograd().Release(state_->id());
}

GlobalId Context::id() const {
  return state_ == nullptr ? GlobalId() : state_->id();
}

absl::Status Context::CheckUsable() const {
  if (state_ != nullptr) return worker_->CheckRunning();
  return WithRemedy(absl::FailedPreconditionError("a context that was moved from"),
                    "use the one that it was moved to");
}

absl::StatusOr<std::shared_ptr<dist_autograd::ContextState>> StateOf(const Context& context) {
  PSD_RETURN_IF_ERROR(context.CheckUsable());
  return context.state_;
}

absl::Status Context::Backward(const std::vector<Variable>& roots,
                               const dist_autograd::BackwardOptions& options) {
  PSD_RETURN_IF_ERROR(CheckUsable());
  return worker_->runtime->autograd().Backward(state_, roots, options).Wait().status();
}

absl::Status Context::Backward(const RRef& root, const dist_autograd::BackwardOptions& options) {
  PSD_RETURN_IF_ERROR(CheckUsable());
  Future<Values> fetching =
      worker_->runtime->values().FetchRecorded({root}, state_, worker_->ToCallOptions({}));
  PSD_ASSIGN_OR_RETURN(Values fetched, std::move(fetching).Wait());
  const auto* variable = fetched[0].As<Variable>();
  if (variable == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("backward from ", root.ToString(), ", which is ",
                                                   fetched[0].KindName(), ", not a tensor"));
  }
  return Backward(std::vector<Variable>{*variable}, options);
}

absl::Status Context::BackwardFrom(const std::vector<Variable>& outputs,
                                   const std::vector<Tensor>& gradients,
                                   const dist_autograd::BackwardOptions& options) {
  PSD_RETURN_IF_ERROR(CheckUsable());
  return worker_->runtime->autograd()
      .BackwardFrom(state_, outputs, gradients, options)
      .Wait()
      .status();
}

absl::Status Context::PushGradient(const RRef& parameter, const Tensor& gradient,
                                   uint64_t version) {
  PSD_RETURN_IF_ERROR(CheckUsable());
  if (!parameter.valid()) return absl::InvalidArgumentError("PushGradient of an RRef to nothing");
  if (!gradient.defined()) {
    return absl::InvalidArgumentError(
        absl::StrCat("PushGradient of ", parameter.ToString(), " was given an undefined tensor"));
  }
  return worker_->runtime->gradients()
      .Push(state_, parameter, version, gradient, worker_->ToCallOptions({}))
      .Wait()
      .status();
}

absl::StatusOr<Tensor> Context::Gradient(const Variable& leaf) const {
  PSD_RETURN_IF_ERROR(CheckUsable());
  PSD_RETURN_IF_ERROR(leaf.status());
  if (!leaf.requires_grad() || !leaf.is_leaf()) {
    return WithRemedy(absl::InvalidArgumentError(absl::StrCat(
                          "no gradient is collected for ", leaf.tensor().ToString(), ": it is ",
                          leaf.requires_grad()
                              ? "the result of an operation or a call; ask for what it was made of"
                              : "a constant")),
                      "make it with requires_grad");
  }
  PSD_ASSIGN_OR_RETURN(dist_autograd::LeafGradient found, state_->Gradient(leaf.key()));
  return found.gradient;
}

absl::StatusOr<Value> Context::FetchGradient(const RRef& leaf) const {
  PSD_RETURN_IF_ERROR(CheckUsable());
  PSD_RETURN_IF_ERROR(worker_->runtime->autograd().Find(state_->id()).status());
  PSD_RETURN_IF_ERROR(state_->usable());
  if (!leaf.valid()) return absl::InvalidArgumentError("Gradient of an RRef to nothing");
  return worker_->runtime->gradients().Fetch(state_->id(), leaf, worker_->ToCallOptions({})).Wait();
}

absl::StatusOr<Tensor> Context::Gradient(const RRef& parameter) const {
  PSD_ASSIGN_OR_RETURN(Value gradient, FetchGradient(parameter));
  if (const auto* dense = gradient.As<Variable>()) return dense->tensor();
  return WithRemedy(absl::InvalidArgumentError(absl::StrCat(
                        "the gradient of ", parameter.ToString(), " is ", gradient.KindName())),
                    "get it by SparseGradient");
}

absl::StatusOr<SparseTensor> Context::SparseGradient(const RRef& table) const {
  PSD_ASSIGN_OR_RETURN(Value gradient, FetchGradient(table));
  if (const SparseTensor* sparse = gradient.AsSparse()) return *sparse;
  return WithRemedy(absl::InvalidArgumentError(absl::StrCat("the gradient of ", table.ToString(),
                                                            " is ", gradient.KindName())),
                    "get it by Gradient");
}

}  // namespace psd
