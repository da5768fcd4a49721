#include "core/optim/steps/round_measure.h"

#include <algorithm>
#include <utility>

#include "core/base/status.h"

namespace psd::optim {

std::optional<absl::StatusOr<StepResult>> RoundMeasure::Find(GlobalId turn) const {
  MutexLock lock(mutex_);
  if (std::find(last_turns_.begin(), last_turns_.end(), turn) == last_turns_.end())
    return std::nullopt;
  StepResult measured;
  measured.sum_of_squares = last_sum_;
  return measured;
}

absl::StatusOr<double> RoundMeasure::Reduce(std::vector<StepRequest>& round,
                                            const std::set<GlobalId>& applied) const {
  StepPlan sum;
  size_t trainers = 0;
  for (StepRequest& request : round) {
    if (applied.count(request.step_id) > 0) continue;
    PSD_ASSIGN_OR_RETURN(sum, table_.Sum(std::move(sum), std::move(request.plan)));
    trainers += request.seats;
  }
  PSD_RETURN_IF_ERROR(table_.Round(sum));
  const double scale = mode_.ReductionScale(trainers);
  PSD_ASSIGN_OR_RETURN(const double squares, SumOfSquares(sum));
  return squares * scale * scale;
}

void RoundMeasure::Run(std::vector<StepRequest> round, const std::set<GlobalId>& applied) {
  const absl::StatusOr<double> sum = Reduce(round, applied);
  if (sum.ok()) {
    MutexLock lock(mutex_);
    last_turns_.clear();
    for (const StepRequest& request : round) last_turns_.push_back(request.round.turn);
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
