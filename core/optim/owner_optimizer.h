#pragma once

// The part of one optimizer that lives on one owner: its parameters there, their state, and the
// steps that it has applied.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "core/base/ids.h"
#include "core/optim/functional_optimizer.h"
#include "core/store/store.h"
#include "core/store/value.h"
#include "core/tensor/tensor.h"

namespace psd::optim {

// A gradient for one parameter.
struct ParameterGradient {
  GlobalId parameter;
  Tensor gradient;
  uint64_t version = 0;  // of the parameter, that it was computed from; 0 = unknown
};

// What one step did on one owner.
struct StepResult {
  uint64_t steps_accepted = 0;  // by this owner, this one included
  int parameters_stepped = 0;   // those with a gradient
  uint64_t max_staleness = 0;   // versions between those read and those stepped, at most
  bool repeated = false;        // this step id had been applied before: nothing was done now
};

// Step ids that an optimizer remembers: a repeated step is recognised among the last so many.
inline constexpr size_t kRememberedSteps = 4096;

// Thread-safe. Steps of this optimizer, and of others that share a parameter, are serial. As a
// value in the store its type is "optimizer/" and the optimizer's type.
class OwnerOptimizer : public store::Object {
 public:
  // Reserves spares and state (charged to the store's budget) for all `parameters`, which may be
  // none, so that no step fails for memory. `store` outlives the last step.
  // Errors: INVALID_ARGUMENT (a value that is no parameter or does not require grad, a repeated
  // parameter, a dtype that the optimizer cannot step), RESOURCE_EXHAUSTED; nothing is kept then.
  static absl::StatusOr<std::shared_ptr<OwnerOptimizer>> Create(
      std::unique_ptr<FunctionalOptimizer> function, std::vector<store::EntryPtr> parameters,
      store::Store& store);

  virtual const OptimizerSpec& spec() const = 0;
  virtual std::vector<GlobalId> parameters() const = 0;
  virtual bool Steps(GlobalId parameter) const = 0;  // is it one of them?

  // Applies one step: checks everything (known parameters, shapes, dtypes, at most one gradient
  // each), waits its turn, writes the spares, publishes all of them as one, then calls `done`.
  // Parameters without a gradient are untouched, and so are their state and step count.
  // `step_id` makes it idempotent: a step that was applied before is answered `repeated`.
  // `begin_apply` (may be null) is asked once, right before the first byte changes; false cancels
  // the step (`done` gets CANCELLED, nothing has changed).
  // Runs on this thread, or on that of the last step before it. Neither callback may wait for
  // another step.
  // Errors: INVALID_ARGUMENT naming parameter, expected and given; RESOURCE_EXHAUSTED when a
  // gradient with strides cannot be made dense.
  virtual void Step(GlobalId step_id, std::vector<ParameterGradient> gradients,
                    absl::AnyInvocable<bool()> begin_apply,
                    absl::AnyInvocable<void(absl::StatusOr<StepResult>)> done) = 0;

  struct Stats {
    uint64_t steps = 0;
    uint64_t max_staleness = 0;
    double mean_staleness = 0;
    size_t state_bytes = 0;
  };
  virtual Stats stats() const = 0;
};

}  // namespace psd::optim
