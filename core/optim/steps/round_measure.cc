#include "core/optim/steps/round_measure.h"

#include <algorithm>
#include <utility>

#include "core/base/status.h"

namespace psd::optim {

RoundMeasure::RoundMeasure(const ParameterTable& table, const UpdateMode& mode,
                           StepGate::Known known)
    : table_(table),
      mode_(mode),
      gate_(StepGate::Create(
          mode,
          [this, known = std::move(known)](const StepRequest& request) {
            auto measured = Find(request.step_id);
            return measured.has_value() ? measured : known(request);
          },
          [this](std::vector<StepRequest> round) { Run(std::move(round)); })) {}

void RoundMeasure::Measure(StepRequest request,
                           absl::AnyInvocable<void(absl::StatusOr<double>)> done) {
  request.done = [done = std::move(done)](absl::StatusOr<StepResult> result) mutable {
    if (!result.ok()) return done(result.status());
    done(result->sum_of_squares);
  };
  gate_->Submit(std::move(request));
}

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
