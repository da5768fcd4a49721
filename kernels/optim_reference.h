#pragma once

// The optimizers' formulas as plain scalar loops: what the vectorised kernels are tested against.
// As the functions of optim_<name>.h, of any alignment.

#include "kernels/optim_adadelta.h"
#include "kernels/optim_adagrad.h"
#include "kernels/optim_adam.h"
#include "kernels/optim_adamax.h"
#include "kernels/optim_arrays.h"
#include "kernels/optim_rmsprop.h"
#include "kernels/optim_rprop.h"
#include "kernels/optim_sgd.h"

namespace psd::kernels {

void ReferenceStep(const SgdOptions& options, const OptimBatch& batch);
void ReferenceStep(const AdagradOptions& options, const OptimBatch& batch);
void ReferenceStep(const AdamOptions& options, const OptimBatch& batch);
void ReferenceStep(const AdamaxOptions& options, const OptimBatch& batch);
void ReferenceStep(const AdadeltaOptions& options, const OptimBatch& batch);
void ReferenceStep(const RmsPropOptions& options, const OptimBatch& batch);
void ReferenceStep(const RpropOptions& options, const OptimBatch& batch);

}  // namespace psd::kernels
