#pragma once

// The optimizers' formulas as plain scalar loops, against which the vectorised kernels are tested.
// Each does the same as the step function for the same options (kernels/optim/<name>.h), but arrays
// need no alignment.

#include "kernels/optim/adadelta.h"
#include "kernels/optim/adagrad.h"
#include "kernels/optim/adam.h"
#include "kernels/optim/adamax.h"
#include "kernels/optim/arrays.h"
#include "kernels/optim/rmsprop.h"
#include "kernels/optim/rprop.h"
#include "kernels/optim/sgd.h"

namespace psd::kernels {

void ReferenceStep(const SgdOptions& options, const OptimBatch& batch);
void ReferenceStep(const AdagradOptions& options, const OptimBatch& batch);
void ReferenceStep(const AdamOptions& options, const OptimBatch& batch);
void ReferenceStep(const AdamaxOptions& options, const OptimBatch& batch);
void ReferenceStep(const AdadeltaOptions& options, const OptimBatch& batch);
void ReferenceStep(const RmsPropOptions& options, const OptimBatch& batch);
void ReferenceStep(const RpropOptions& options, const OptimBatch& batch);

}  // namespace psd::kernels
