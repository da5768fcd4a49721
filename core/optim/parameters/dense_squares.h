#pragma once

// Sums the squares of dense gradients, which clipping by norm and loss scaling need.

#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/tensor/tensor.h"

namespace psd::optim {

// Returns the sum of the squares of each gradient, computed where the gradient is. It is finite if
// and only if all elements are, except that a sum of doubles may overflow. All gradients of one
// device and dtype are one piece of work for the thread's CurrentStream, which is waited for. If a
// device has no room for it, its gradients are copied to the host.
// Requires: the gradients are contiguous and of floating dtypes. Errors: UNIMPLEMENTED naming a
// device that has no such kernel; RESOURCE_EXHAUSTED; those of the devices.
absl::StatusOr<std::vector<double>> SumsOfSquares(absl::Span<const Tensor* const> gradients);

}  // namespace psd::optim
