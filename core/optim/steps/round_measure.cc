#include "core/optim/steps/round_measure.h"

#include <algorithm>
#include <utility>

#include "core/base/status.h"

namespace psd::optim {

RoundMeasure::RoundMeasure(const ParameterTable& table, const UpdateMode& mode)
    : table_(table),
      mode_(mode),
      gate_(StepGate::Create(mode,
                             [this](std::vector<StepRequest> round) { Run(std::move(round)); })) {}

void RoundMeasure::Measure(GlobalId step_id, Member member, StepPlan plan,
                           absl::AnyInvocable<void(absl::StatusOr<double>)> done) {
  if (std::optional<double> known = Find(step_id); known.has_value()) return done(*known);
  StepRequest request;
  request.step_id = step_id;
  request.member = std::move(member);
  request.plan = std::move(plan);
  request.done = [done = std::move(done)](absl::StatusOr<StepResult> result) mutable {
    if (!result.ok()) return done(result.status());
    done(result->sum_of_squares);
  };
  gate_->Submit(std::move(request));
}

std::optional<double> RoundMeasure::Find(GlobalId step) const {
  MutexLock lock(mutex_);
  if (std::find(last_steps_.begin(), last_steps_.end(), step) == last_steps_.end())
    return std::nullopt;
  return last_sum_;
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
