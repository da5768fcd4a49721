#pragma once

// Measures the gradients of a synchronous round, before any member applies them.

#include <optional>
#include <set>
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
  // `table` outlives this object. Requires: a synchronous mode.
  RoundMeasure(const ParameterTable& table, const UpdateMode& mode) : table_(table), mode_(mode) {}

  // Answers all steps of a round with the sum of squares of their gradients, reduced according to
  // the mode. A step in `applied` takes part without its gradients, because it was applied before.
  // Errors (through
  // `done`): RESOURCE_EXHAUSTED; those of devices that have gradients.
  void Run(std::vector<StepRequest> round, const std::set<GlobalId>& applied) PSD_EXCLUDES(mutex_);
  // Returns the answer for a turn of the last measured round, if its step is asked for again.
  std::optional<absl::StatusOr<StepResult>> Find(GlobalId turn) const PSD_EXCLUDES(mutex_);

 private:
  absl::StatusOr<double> Reduce(std::vector<StepRequest>& round,
                                const std::set<GlobalId>& applied) const;

  const ParameterTable& table_;
  const UpdateMode mode_;
  mutable Mutex mutex_;  // leaf
  std::vector<GlobalId> last_turns_ PSD_GUARDED_BY(mutex_);
  double last_sum_ PSD_GUARDED_BY(mutex_) = 0;
};

}  // namespace psd::optim
