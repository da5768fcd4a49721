#pragma once

// Describes the contents of a store in the types of a save, and checks whether contents of a save
// can be loaded into it.

#include <memory>

#include "absl/status/status.h"
#include "core/optim/options/optimizer_registry.h"
#include "core/optim/owner/owner_optimizer.h"
#include "core/services/checkpoint/checkpoint_types.h"
#include "core/store/store.h"

namespace psd::services {

// Returns the number of steps that all named optimizers together have accepted.
uint64_t StepsAccepted(const store::Store& store);

// Describes all named values.
OwnerContents DescribeContents(const store::Store& store);

// Describes the state arrays of one parameter, named by slot.
std::vector<checkpoint::TensorSpec> DescribeState(const optim::SteppedParameter& parameter);

// Checks that `wanted` can be loaded: existing values and optimizers must fit, and it must be
// possible to create the others. Changes nothing.
// Errors: FAILED_PRECONDITION for a value or optimizer that exists with another kind, shape,
// options or state, naming both; INVALID_ARGUMENT for one that could not be created;
// RESOURCE_EXHAUSTED if the memory budget is too small.
absl::Status CheckContents(store::Store& store, const optim::OptimizerRegistry& optimizers,
                           const OwnerContents& wanted);

}  // namespace psd::services
