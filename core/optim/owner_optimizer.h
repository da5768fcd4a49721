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
#include "core/optim/parameter_table.h"
#include "core/optim/stepped_parameter.h"
#include "core/store/store.h"
#include "core/store/value.h"

namespace psd::optim {

// Parameters that are stepped with the same options.
struct ParameterGroup {
  std::unique_ptr<FunctionalOptimizer> function;
  std::vector<store::EntryPtr> parameters;
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
  // Reserves spares and state (charged to the store's budget) for all parameters of `groups`,
  // which may be none, so that no step fails for memory. `store` outlives the last step.
  // Requires: at least one group; all functions are of one type.
  // Errors: INVALID_ARGUMENT (a value that is no parameter or does not require grad, a repeated
  // parameter, a dtype that the optimizer cannot step), RESOURCE_EXHAUSTED; nothing is kept then.
  static absl::StatusOr<std::shared_ptr<OwnerOptimizer>> Create(std::vector<ParameterGroup> groups,
                                                                store::Store& store);

  // Its parameters here: which there are never changes.
  virtual const ParameterTable& table() const = 0;
  // The first group's.
  virtual OptimizerSpec spec() const = 0;

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

  // Calls `visit` with one of the parameters and the right to read and write its state and step
  // count: between steps, none of which runs on this parameter meanwhile. Now, or on the thread of
  // the last step before it; `visit` may not wait for a step. For saving and loading.
  // Errors (returned, `visit` is not called): NOT_FOUND for no parameter of this optimizer.
  virtual absl::Status VisitState(GlobalId parameter,
                                  absl::AnyInvocable<void(SteppedParameter&)> visit) = 0;

  struct Stats {
    uint64_t steps = 0;
    uint64_t max_staleness = 0;
    double mean_staleness = 0;
    size_t state_bytes = 0;
  };
  virtual Stats stats() const = 0;
};

}  // namespace psd::optim
