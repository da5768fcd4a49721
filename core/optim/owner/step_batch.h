#pragma once

// Steps that an owner applies as one: a single step, or a synchronous round.

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/base/ids.h"
#include "core/base/stream.h"
#include "core/optim/options/optimizer_config.h"
#include "core/optim/options/option_groups.h"
#include "core/optim/owner/optimizer_change.h"
#include "core/optim/parameters/parameter_table.h"
#include "core/optim/steps/step_request.h"

namespace psd::optim {

struct StepBatch {
  struct Step {
    explicit Step(StepRequest r) : request(std::move(r)) {}
    StepRequest request;
    absl::StatusOr<StepResult> result = StepResult{};
    bool applies = true;  // false once a check has refused the step; `result` says why
  };
  absl::InlinedVector<Step, 1> steps;
  // If not null, the batch does nothing but adding work to this stream of a device, so the batch
  // behind it may begin before this one is complete.
  const Stream* stream = nullptr;
  // The batch that is being applied, and the gradients that it points to. Empty before Apply.
  std::optional<StepPlan> merged;
  StepChange change;
};

// Returns the number of elements of a plan's gradients, which is how many a measurement reads.
int64_t ElementsOf(const StepPlan& plan);

// Returns the number of elements that the steps read or write. Requires: the batch's claim is held.
int64_t StepElements(const StepBatch& batch, const ParameterTable& table);

// Returns the ids that the batch claims, sorted: those of its parameters, and `claim_id`.
std::vector<GlobalId> ClaimedIds(const StepBatch& batch, GlobalId claim_id);

// Checks a step of the parameters in `table`; `functions` has the function of each group. Errors:
// those of OwnerOptimizer::Check.
absl::Status CheckStep(const StepPlan& plan, const ParameterTable& table, const UpdateMode& mode,
                       absl::Span<const FunctionPtr> functions);

// Checks the steps that may still be applied, and merges them into one plan and one set of terms.
// Returns nothing if no step is left. Errors: RESOURCE_EXHAUSTED.
absl::StatusOr<std::optional<StepPlan>> MergeSteps(StepBatch& batch, const ParameterTable& table,
                                                   const UpdateMode& mode,
                                                   absl::Span<const FunctionPtr> functions,
                                                   StepTerms& terms);

}  // namespace psd::optim
