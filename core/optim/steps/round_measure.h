#pragma once

// What a synchronous round's gradients measure, before anybody applies them: rounds of their own,
// in which nothing is applied.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "core/base/ids.h"
#include "core/base/mutex.h"
#include "core/optim/options/optimizer_config.h"
#include "core/optim/parameters/parameter_table.h"
#include "core/optim/steps/step_gate.h"
#include "core/optim/steps/step_request.h"

namespace psd::optim {

// Thread-safe.
class RoundMeasure {
 public:
  // `table` outlives it. Requires: a synchronous mode.
  RoundMeasure(const ParameterTable& table, const UpdateMode& mode, StepGate::Known known);

  // The sum of squares of the round's gradients, reduced as the mode says, when every member has
  // asked; the same to all. Errors: StepGate's; RESOURCE_EXHAUSTED.
  void Measure(StepRequest request, absl::AnyInvocable<void(absl::StatusOr<double>)> done);
  // See StepGate.
  void Withdraw(uint64_t ticket) { gate_->Withdraw(ticket); }
  void Leave(GlobalId session) { gate_->Leave(session); }
  size_t waiting() const { return gate_->stats().waiting; }

 private:
  // The answer to a step of the last round, asked for again.
  std::optional<absl::StatusOr<StepResult>> Find(GlobalId step) const PSD_EXCLUDES(mutex_);
  void Run(std::vector<StepRequest> round) PSD_EXCLUDES(mutex_);
  absl::StatusOr<double> Reduce(std::vector<StepRequest>& round) const;

  const ParameterTable& table_;
  const UpdateMode mode_;
  mutable Mutex mutex_;  // leaf
  std::vector<GlobalId> last_steps_ PSD_GUARDED_BY(mutex_);
  double last_sum_ PSD_GUARDED_BY(mutex_) = 0;
  const std::unique_ptr<StepGate> gate_;
};

}  // namespace psd::optim
