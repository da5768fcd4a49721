#include "core/optim/owner/step_batch.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "core/autograd/read_version.h"
#include "core/base/device.h"
#include "core/base/remedy.h"
#include "core/base/status.h"
#include "core/optim/functional/row_optimizer.h"
#include "core/optim/parameters/stepped_parameter.h"
#include "core/optim/rows/sparse_gradient.h"

namespace psd::optim {
namespace {

absl::Status CheckVersion(const SteppedParameter& parameter, const UpdateMode& mode,
                          const ReadVersion& read) {
  const auto refuse = [&](const auto&... text) {
    return absl::FailedPreconditionError(
        absl::StrCat("the gradient for ", parameter.entry()->Label(), text...,
                     "; this optimizer takes at most ", mode.staleness, " versions behind"));
  };
  const uint64_t current = parameter.version();
  if (read.oldest() != 0 && current > read.oldest() && current - read.oldest() > mode.staleness) {
    return refuse(" was computed from version ", read.oldest(), ", ", current - read.oldest(),
                  " behind the current ", current, " (pull the parameters and compute it again)");
  }
  if (!read.has_unknown() || mode.allow_unknown_versions) return absl::OkStatus();
  return refuse(
      " does not say which version it was computed from (give the version, or create the optimizer "
      "with UpdateMode::WithUnknownVersions)");
}

}  // namespace

int64_t ElementsOf(const StepPlan& plan) {
  int64_t elements = 0;
  for (const ParameterGradient& each : plan.gradients) {
    elements += each.rows == nullptr ? each.gradient->NumElements()
                                     : each.rows->entries.values().NumElements();
  }
  return elements;
}

int64_t StepElements(const StepBatch& batch, const ParameterTable& table) {
  int64_t elements = 0;
  for (const StepBatch::Step& step : batch.steps) {
    const StepPlan& plan = step.request.plan;
    for (size_t i = 0; i < plan.indices.size(); ++i)
      elements += table[plan.indices[i]].StepElements(plan.gradients[i]);
  }
  return elements;
}

std::vector<GlobalId> ClaimedIds(const StepBatch& batch, GlobalId claim_id) {
  std::vector<GlobalId> ids;
  ids.reserve(batch.steps[0].request.plan.gradients.size() + 1);
  for (const StepBatch::Step& step : batch.steps)
    for (const ParameterGradient& each : step.request.plan.gradients) ids.push_back(each.parameter);
  if (batch.steps.size() > 1) std::sort(ids.begin(), ids.end());
  ids.insert(std::lower_bound(ids.begin(), ids.end(), claim_id), claim_id);
  return ids;
}

namespace {

// Checks a sparse gradient. That of a dense parameter on a device was made dense.
absl::Status CheckSparse(const SteppedParameter& parameter, const ParameterGradient& gradient,
                         const FunctionalOptimizer& function) {
  const std::string label = parameter.entry()->Label();
  PSD_RETURN_IF_ERROR(Annotate(function.rows()->CheckOptions(), label));
  const bool made_dense = parameter.device() != nullptr && gradient.rows == nullptr;
  if (!made_dense || function.rows()->KeepsRowsOfZeroGradient()) return absl::OkStatus();
  return WithRemedy(absl::InvalidArgumentError(absl::StrCat(
                        label, ": ", function.spec().type,
                        " with eps = 0 takes no sparse gradient for a parameter ", "on ",
                        parameter.device()->name(),
                        ", where it would divide by zero in rows that had no ", "gradient yet")),
                    "give a larger eps");
}

}  // namespace

absl::Status CheckStep(const StepPlan& plan, const ParameterTable& table, const UpdateMode& mode,
                       absl::Span<const FunctionPtr> functions) {
  const bool bounded = mode.kind == UpdateMode::Kind::kBoundedStaleness;
  for (size_t i = 0; i < plan.indices.size(); ++i) {
    const SteppedParameter& parameter = table[plan.indices[i]];
    if (bounded) PSD_RETURN_IF_ERROR(CheckVersion(parameter, mode, plan.gradients[i].version));
    if (!plan.gradients[i].from_sparse) continue;
    PSD_RETURN_IF_ERROR(CheckSparse(parameter, plan.gradients[i], *functions[parameter.group()]));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<StepPlan>> MergeSteps(StepBatch& batch, const ParameterTable& table,
                                                   const UpdateMode& mode,
                                                   absl::Span<const FunctionPtr> functions,
                                                   StepTerms& terms) {
  std::optional<StepPlan> merged;
  size_t trainers = 0;
  for (StepBatch::Step& step : batch.steps) {
    if (!step.applies) continue;
    StepRequest& request = step.request;
    if (absl::Status fits = CheckStep(request.plan, table, mode, functions); !fits.ok()) {
      step.applies = false;
      step.result = std::move(fits);
      continue;
    }
    if (request.begin_apply != nullptr && !request.begin_apply()) {
      step.applies = false;
      step.result = absl::CancelledError("the step was cancelled before it changed anything");
      continue;
    }
    trainers += request.seats;
    if (!merged.has_value()) {
      terms = request.terms;
      merged = std::move(request.plan);
    } else {
      PSD_ASSIGN_OR_RETURN(merged, table.Sum(*std::move(merged), std::move(request.plan)));
    }
  }
  if (merged.has_value()) PSD_RETURN_IF_ERROR(table.Round(*merged));
  terms.gradient_scale *= mode.ReductionScale(trainers);
  return merged;
}

}  // namespace psd::optim
