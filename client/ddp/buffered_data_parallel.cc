#include "client/ddp/buffered_data_parallel.h"

#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "client/context_of.h"
#include "client/ddp/gradient_paths.h"
#include "client/ddp/overlapped_round.h"
#include "core/base/ids.h"
#include "core/base/quoted.h"
#include "core/base/remedy.h"
#include "core/base/status.h"
#include "core/rref/rref.h"
#include "core/tensor/ops/cast.h"
#include "core/tensor/ops/elementwise.h"

namespace psd {
namespace {

// Tensors of 16-bit dtypes are multiplied in f32, because the operators do not take these dtypes.
absl::StatusOr<Tensor> Scale(const Tensor& gradient, double factor) {
  if (ItemSize(gradient.dtype()) > 2) return ops::Mul(gradient, factor);
  PSD_ASSIGN_OR_RETURN(const Tensor wide, ops::Cast(gradient, DType::kF32));
  PSD_ASSIGN_OR_RETURN(const Tensor scaled, ops::Mul(wide, factor));
  return ops::Cast(scaled, gradient.dtype());
}

// Whether both are undefined or have the same bits. Requires: they have the same shape and dtype.
// Errors: those of the devices.
absl::StatusOr<bool> SameElements(const Tensor& a, const Tensor& b) {
  if (!a.defined() || !b.defined()) return a.defined() == b.defined();
  if (a.address() == b.address()) return true;
  if (!a.IsContiguous() || !b.IsContiguous()) return false;
  PSD_ASSIGN_OR_RETURN(const Tensor a_here, a.ToHost());
  PSD_ASSIGN_OR_RETURN(const Tensor b_here, b.ToHost());
  return std::memcmp(a_here.raw_data(), b_here.raw_data(), a.NumBytes()) == 0;
}

// Returns the number of samples of all ranks.
absl::StatusOr<double> AllSamples(Group& group, double samples, const CollectiveOptions& options) {
  CollectiveOptions call = options;
  call.label = absl::StrCat(options.label, options.label.empty() ? "" : ", ", "samples");
  PSD_ASSIGN_OR_RETURN(const Tensor sum,
                       group.AllReduce(Tensor::Scalar<double>(samples), Reduction::kSum, call));
  return *sum.data<double>();
}

}  // namespace

absl::StatusOr<std::unique_ptr<BufferedDataParallel>> BufferedDataParallel::Create(
    std::shared_ptr<Group> group, const Replica& replica, const BufferedOptions& options) {
  std::unique_ptr<BufferedDataParallel> created(
      new BufferedDataParallel(std::move(group), replica, options));
  PSD_RETURN_IF_ERROR(created->Plan());
  return created;
}

absl::Status BufferedDataParallel::Plan() {
  std::vector<bool> require_grad;
  for (const ReplicatedParameter& parameter : replica_.parameters())
    require_grad.push_back(parameter.requires_grad);
  if (averaging_.has_value() && require_grad == planned_for_) return absl::OkStatus();
  PSD_ASSIGN_OR_RETURN(averaging_,
                       BufferedAllReduce::Create(group_, replica_.parameters(), options_));
  planned_for_ = std::move(require_grad);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<BufferGroup>> BufferedDataParallel::Buffers() {
  PSD_RETURN_IF_ERROR(Plan());
  return averaging_->groups();
}

absl::StatusOr<BufferedAllReduce::Round> BufferedDataParallel::Begin(
    const AllReduceOptions& options) {
  const double samples = options.samples.value_or(0);
  if (!std::isfinite(samples) || samples < 0) {
    return WithRemedy(
        absl::InvalidArgumentError(absl::StrCat("gradients of ", samples, " samples")),
        "give a finite number, at least 0");
  }
  PSD_RETURN_IF_ERROR(Plan());
  return averaging_->Begin(options.call);
}

absl::Status BufferedDataParallel::AllReduceGradients(const Context& context,
                                                      const AllReduceOptions& options) {
  if (no_sync_depth_ > 0) return absl::OkStatus();
  PSD_ASSIGN_OR_RETURN(BufferedAllReduce::Round round, Begin(options));
  PSD_ASSIGN_OR_RETURN(const Replica::Collected collected, replica_.Collect(context));
  return Finish(std::move(round), collected, options);
}

absl::Status BufferedDataParallel::Finish(BufferedAllReduce::Round round,
                                          const Replica::Collected& collected,
                                          const AllReduceOptions& options) const {
  // A parameter that was frozen after the forward pass has a gradient, which it keeps.
  std::vector<Tensor> gradients = collected.gradients;
  for (size_t i = 0; i < gradients.size(); ++i)
    if (!planned_for_[i]) gradients[i] = Tensor();
  PSD_ASSIGN_OR_RETURN(std::vector<Tensor> means, round.Finish(gradients));
  if (options.samples.has_value()) {
    const absl::Status scaled = ScaleBySamples(means, *options.samples, options.call);
    if (!scaled.ok()) return group_->Fail(scaled);
  }
  const absl::Status replaced = replica_.Replace(collected, means);
  // The other ranks have the means by now. This rank fails the group, because they would go on with
  // other gradients than its own.
  return replaced.ok() ? replaced : group_->Fail(replaced);
}

absl::Status BufferedDataParallel::Backward(Context& context, const std::vector<Variable>& roots,
                                            const dist_autograd::BackwardOptions& backward,
                                            const AllReduceOptions& options) {
  if (no_sync_depth_ > 0) return context.Backward(roots, backward);
  PSD_RETURN_IF_ERROR(StateOf(context).status());
  PSD_ASSIGN_OR_RETURN(BufferedAllReduce::Round round, Begin(options));
  PSD_RETURN_IF_ERROR(group_->status());
  absl::Status done;
  if (options_.overlap && group_->size() > 1) {
    done = BackwardOverlapped(context, roots, backward, options, std::move(round));
  } else {
    done = context.Backward(roots, backward);
    if (done.ok()) done = AllReduceGradients(context, options);
  }
  return done.ok() ? done : group_->Fail(done);
}

absl::Status BufferedDataParallel::BackwardOverlapped(
    Context& context, const std::vector<Variable>& roots,
    const dist_autograd::BackwardOptions& backward, const AllReduceOptions& options,
    BufferedAllReduce::Round round) {
  PSD_ASSIGN_OR_RETURN(const Replica::Collected before, replica_.Collect(context));
  PSD_ASSIGN_OR_RETURN(const auto state, StateOf(context));
  std::vector<GlobalId> keys;
  for (const RRef& value : replica_.values()) keys.push_back(value.value_id());
  const auto overlapped =
      std::make_shared<OverlappedRound>(std::move(round), averaging_->groups(), before.gradients);
  absl::Status ran = overlapped->Watch(FindPaths(keys, *state, roots));
  if (ran.ok()) ran = context.Backward(roots, backward);
  OverlappedRound::Closed closed = overlapped->Close();
  PSD_RETURN_IF_ERROR(closed.failure);
  PSD_RETURN_IF_ERROR(ran);
  PSD_ASSIGN_OR_RETURN(const Replica::Collected after, replica_.Collect(context));
  PSD_RETURN_IF_ERROR(CheckSent(closed.round.started(), closed.gradients, after.gradients));
  return Finish(std::move(closed.round), after, options);
}

absl::Status BufferedDataParallel::CheckSent(size_t buffers, const std::vector<Tensor>& sent,
                                             const std::vector<Tensor>& collected) const {
  for (size_t buffer = 0; buffer < buffers; ++buffer) {
    for (const size_t index : averaging_->groups()[buffer].parameters) {
      PSD_ASSIGN_OR_RETURN(const bool same, SameElements(sent[index], collected[index]));
      if (same) continue;
      return WithRemedy(absl::FailedPreconditionError(absl::StrCat(
                            Quoted(replica_.name(index)),
                            " got a gradient from elsewhere after its own had left for the other "
                            "ranks")),
                        "add gradients when no backward runs");
    }
  }
  return absl::OkStatus();
}

absl::Status BufferedDataParallel::Iterate(const Context& context, bool has_input) {
  AllReduceOptions options;
  if (iterate_options_ != nullptr) options = iterate_options_();
  if (!has_input && options.samples.has_value()) options.samples = 0;
  return AllReduceGradients(context, options);
}

absl::Status BufferedDataParallel::ScaleBySamples(std::vector<Tensor>& means, double samples,
                                                  const CollectiveOptions& call) const {
  PSD_ASSIGN_OR_RETURN(const double all, AllSamples(*group_, samples, call));
  const double factor = group_->size() / (all == 0 ? 1 : all);
  for (Tensor& mean : means) {
    if (!mean.defined()) continue;
    PSD_ASSIGN_OR_RETURN(mean, Scale(mean, factor));
  }
  return absl::OkStatus();
}

}  // namespace psd
