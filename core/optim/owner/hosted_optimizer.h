#pragma once

// Optimizers as values of a store.

#include <memory>

#include "core/optim/owner/owner_optimizer.h"
#include "core/store/store.h"

namespace psd::optim {

// Returns the optimizer that `entry` hosts, or null.
std::shared_ptr<OwnerOptimizer> OptimizerOf(const store::Entry& entry);

}  // namespace psd::optim
