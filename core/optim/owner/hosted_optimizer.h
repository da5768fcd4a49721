#pragma once

// Optimizers as values of a store.

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "core/base/ids.h"
#include "core/optim/owner/owner_optimizer.h"
#include "core/rref/rref_context.h"
#include "core/store/store.h"

namespace psd::optim {

// Returns the optimizer that `entry` hosts, or null.
std::shared_ptr<OwnerOptimizer> OptimizerOf(const store::Entry& entry);

// Removes a name. The value is freed when its last fork and handle are gone; the life of an
// optimizer ends at once. With `only`, the name is removed only if that value has it.
// Errors: NOT_FOUND.
absl::Status DropNamed(store::Store& store, rref::RRefContext& rrefs, const std::string& name,
                       GlobalId only = {});

}  // namespace psd::optim
