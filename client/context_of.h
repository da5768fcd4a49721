#pragma once

// The way from a context to what it has collected. For client/.

#include <memory>

#include "absl/status/statusor.h"
#include "client/context.h"
#include "core/dist_autograd/context.h"

namespace psd {

// Returns the part of the context that its own worker has.
// Errors: FAILED_PRECONDITION for a context that was moved from, or whose worker was shut down.
absl::StatusOr<std::shared_ptr<dist_autograd::ContextState>> StateOf(const Context& context);

}  // namespace psd
