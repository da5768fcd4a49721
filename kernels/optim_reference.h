#pragma once

// The optimizers' formulas as plain scalar loops: what the vectorised kernels are tested against.

#include <cstdint>

#include "kernels/optim_adam.h"
#include "kernels/optim_arrays.h"
#include "kernels/optim_sgd.h"

namespace psd::kernels {

// As SgdStep and AdamStep, of any alignment. T is float or double.
template <typename T>
void ReferenceSgdStep(const SgdOptions& options, int64_t step, const OptimArrays<T>& arrays,
                      T* momentum_buffer);
template <typename T>
void ReferenceAdamStep(const AdamOptions& options, int64_t step, const OptimArrays<T>& arrays,
                       const AdamState<T>& state);

}  // namespace psd::kernels
