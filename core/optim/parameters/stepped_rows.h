#pragma once

// A table of rows with the state that one optimizer keeps for it. A step updates the rows that have
// a gradient, in place; readers see each row either as before or as after the step.

#include <memory>

#include "absl/status/statusor.h"
#include "core/base/memory_budget.h"
#include "core/optim/functional/functional_optimizer.h"
#include "core/optim/parameters/stepped_parameter.h"
#include "core/store/store.h"

namespace psd::optim {

// Requires: the entry is a table of rows. Errors: INVALID_ARGUMENT if the rows do not require grad,
// or if the optimizer does not step rows or has options that do not allow sparse gradients;
// UNIMPLEMENTED if the device of the rows has no kernels for it.
absl::Status CheckSteppedRows(const store::Entry& entry, const FunctionalOptimizer& function);
// Reserves state, charged to `memory`. Requires: CheckSteppedRows is OK. Errors:
// RESOURCE_EXHAUSTED.
absl::StatusOr<std::unique_ptr<SteppedParameter>> NewSteppedRows(
    store::EntryPtr entry, size_t group, const FunctionalOptimizer& function,
    MemoryAccount& memory);

}  // namespace psd::optim
