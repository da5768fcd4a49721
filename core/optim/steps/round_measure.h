#pragma once

// What a synchronous round's gradients measure, before anybody applies them.

#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/ids.h"
#include "core/base/mutex.h"
#include "core/optim/options/optimizer_config.h"
#include "core/optim/parameters/parameter_table.h"
#include "core/optim/steps/step_request.h"

namespace psd::optim {

// Thread-safe.
class RoundMeasure {
 public:
  // `table` outlives it. Requires: a synchronous mode.
  RoundMeasure(const ParameterTable& table, const UpdateMode& mode) : table_(table), mode_(mode) {}

  // Answers the steps of a round, which all members have asked to measure: the sum of squares of
  // their gradients, reduced as the mode says; the same to all. Errors: RESOURCE_EXHAUSTED.
  void Run(std::vector<StepRequest> round) PSD_EXCLUDES(mutex_);
  // The answer to a step of the last round, asked for again.
  std::optional<absl::StatusOr<StepResult>> Find(GlobalId step) const PSD_EXCLUDES(mutex_);

 private:
  absl::StatusOr<double> Reduce(std::vector<StepRequest>& round) const;

  const ParameterTable& table_;
  const UpdateMode mode_;
  mutable Mutex mutex_;  // leaf
  std::vector<GlobalId> last_steps_ PSD_GUARDED_BY(mutex_);
  double last_sum_ PSD_GUARDED_BY(mutex_) = 0;
};

}  // namespace psd::optim
