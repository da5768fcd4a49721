#pragma once

// What a store hosts, in the words of a save, and whether a save's part fits into it.

#include <memory>

#include "absl/status/status.h"
#include "core/optim/options/optimizer_registry.h"
#include "core/optim/owner/owner_optimizer.h"
#include "core/store/store.h"
#include "core/worker/checkpoint_types.h"

namespace psd::worker {

// The optimizer that `entry` hosts, or null.
std::shared_ptr<optim::OwnerOptimizer> OptimizerOf(const store::Entry& entry);

// By all named optimizers together.
uint64_t StepsAccepted(const store::Store& store);

// All named values.
OwnerContents DescribeContents(const store::Store& store);

// The state arrays of one parameter, named by slot.
std::vector<checkpoint::TensorSpec> DescribeState(const optim::SteppedParameter& parameter);

// Whether `wanted` can be loaded: what exists under its names is of the same kind, what does not
// can be made. Nothing changes.
// Errors: FAILED_PRECONDITION naming a value or optimizer that exists as something else, or
// differs, with what both are; INVALID_ARGUMENT for what could not be made; RESOURCE_EXHAUSTED
// when it would not fit into the memory budget.
absl::Status CheckContents(store::Store& store, const optim::OptimizerRegistry& optimizers,
                           const OwnerContents& wanted);

}  // namespace psd::worker
