#include "core/optim/parameters/parameter_table.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/remedy.h"
#include "core/base/status.h"
#include "core/optim/parameters/dense_squares.h"
#include "core/optim/rows/sparse_gradient.h"
#include "core/tensor/tensor.h"

namespace psd::optim {

ParameterTable::ParameterTable(std::vector<std::unique_ptr<SteppedParameter>> parameters)
    : parameters_(std::move(parameters)) {
  std::sort(parameters_.begin(), parameters_.end(),
            [](const auto& a, const auto& b) { return a->id() < b->id(); });
  ids_.reserve(parameters_.size());
  versions_.reserve(parameters_.size());
  for (const auto& parameter : parameters_) {
    ids_.push_back(parameter->id());
    versions_.push_back(parameter->versions());
  }
}

std::optional<size_t> ParameterTable::Search(GlobalId id, size_t first) const {
  if (first >= ids_.size()) return std::nullopt;
  const auto found =
      std::lower_bound(ids_.begin() + static_cast<std::ptrdiff_t>(first), ids_.end(), id);
  if (found == ids_.end() || *found != id) return std::nullopt;
  return static_cast<size_t>(found - ids_.begin());
}

absl::StatusOr<StepPlan> ParameterTable::Plan(std::vector<ParameterGradient> gradients,
                                              std::shared_ptr<const void> keeper) const {
  const auto id_less = [](const ParameterGradient& a, const ParameterGradient& b) {
    return a.parameter < b.parameter;
  };
  if (!std::is_sorted(gradients.begin(), gradients.end(), id_less))
    std::sort(gradients.begin(), gradients.end(), id_less);
  StepPlan plan;
  plan.indices.reserve(gradients.size());
  size_t next = 0;
  for (ParameterGradient& each : gradients) {
    if (next > 0 && ids_[next - 1] == each.parameter) {
      return WithRemedy(absl::InvalidArgumentError(absl::StrCat(
                            "two gradients for ", parameters_[next - 1]->entry()->Label())),
                        "sum them first");
    }
    const std::optional<size_t> index = Find(each.parameter, next);
    if (!index.has_value()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "a gradient for value ", each.parameter.ToString(), ", which is not one of the ",
          parameters_.size(), " parameters of this optimizer"));
    }
    PSD_RETURN_IF_ERROR(parameters_[*index]->Prepare(each));
    plan.indices.push_back(*index);
    next = *index + 1;
  }
  plan.gradients = std::move(gradients);
  if (keeper != nullptr) plan.keepers.push_back(std::move(keeper));
  return plan;
}

absl::StatusOr<StepPlan> ParameterTable::Sum(StepPlan a, StepPlan b) const {
  StepPlan sum;
  sum.keepers = std::move(a.keepers);
  std::move(b.keepers.begin(), b.keepers.end(), std::back_inserter(sum.keepers));
  size_t i = 0, j = 0;
  while (i < a.indices.size() || j < b.indices.size()) {
    const bool has_a =
        j == b.indices.size() || (i < a.indices.size() && a.indices[i] <= b.indices[j]);
    const bool has_b =
        i == a.indices.size() || (j < b.indices.size() && b.indices[j] <= a.indices[i]);
    sum.indices.push_back(has_a ? a.indices[i] : b.indices[j]);
    if (has_a && has_b) {
      PSD_ASSIGN_OR_RETURN(ParameterGradient both,
                           parameters_[sum.indices.back()]->Sum(a.gradients[i], b.gradients[j]));
      sum.gradients.push_back(std::move(both));
    } else {
      sum.gradients.push_back(std::move(has_a ? a.gradients[i] : b.gradients[j]));
    }
    i += has_a;
    j += has_b;
  }
  return sum;
}

absl::Status ParameterTable::Round(StepPlan& sum) const {
  for (size_t i = 0; i < sum.indices.size(); ++i)
    PSD_RETURN_IF_ERROR(parameters_[sum.indices[i]]->Round(sum.gradients[i]));
  return absl::OkStatus();
}

absl::Status BringToHost(StepPlan& plan) {
  for (ParameterGradient& each : plan.gradients) {
    if (each.rows != nullptr || each.gradient->OnHost()) continue;
    PSD_ASSIGN_OR_RETURN(each.gradient, each.gradient->ToHost());
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<double>> SumsOfSquares(const StepPlan& plan) {
  std::vector<double> sums(plan.gradients.size());
  std::vector<const Tensor*> dense;
  std::vector<size_t> numbers;  // of the dense ones
  for (size_t i = 0; i < sums.size(); ++i) {
    const ParameterGradient& each = plan.gradients[i];
    if (each.rows != nullptr) {
      sums[i] = SumOfSquares(*each.rows);
    } else {
      dense.push_back(&*each.gradient);
      numbers.push_back(i);
    }
  }
  PSD_ASSIGN_OR_RETURN(const std::vector<double> dense_sums, SumsOfSquares(dense));
  for (size_t i = 0; i < numbers.size(); ++i) sums[numbers[i]] = dense_sums[i];
  return sums;
}

absl::StatusOr<double> SumOfSquares(const StepPlan& plan) {
  PSD_ASSIGN_OR_RETURN(const std::vector<double> sums, SumsOfSquares(plan));
  return std::accumulate(sums.begin(), sums.end(), 0.0);
}

}  // namespace psd::optim
