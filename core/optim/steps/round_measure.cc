#include "core/optim/steps/round_measure.h"

#include <algorithm>
#include <utility>

#include "core/base/status.h"

namespace psd::optim {

std::optional<absl::StatusOr<StepResult>> RoundMeasure::Find(GlobalId step) const {
  MutexLock lock(mutex_);
  if (std::find(last_steps_.begin(), last_steps_.end(), step) == last_steps_.end())
    return std::nullopt;
  StepResult measured;
  measured.sum_of_squares = last_sum_;
  return measured;
}

absl::StatusOr<double> RoundMeasure::Reduce(std::vector<StepRequest>& round) const {
  StepPlan sum;
  for (StepRequest& request : round) {
    PSD_ASSIGN_OR_RETURN(sum, table_.Sum(std::move(sum), std::move(request.plan)));
  }
  PSD_RETURN_IF_ERROR(table_.Round(sum));
  const double scale = mode_.ReductionScale(round.size());
  return table_.SumOfSquares(sum) * scale * scale;
}

void RoundMeasure::Run(std::vector<StepRequest> round) {
  const absl::StatusOr<double> sum = Reduce(round);
  if (sum.ok()) {
    MutexLock lock(mutex_);
    last_steps_.clear();
    for (const StepRequest& request : round) last_steps_.push_back(request.step_id);
    last_sum_ = *sum;
  }
  for (StepRequest& request : round) {
    if (sum.ok()) {
      StepResult result;
      result.sum_of_squares = *sum;
      request.done(result);
    } else {
      request.done(sum.status());
    }
  }
}

}  // namespace psd::optim
