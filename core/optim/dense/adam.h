#pragma once

// The optimizer type "adam". Options: "lr", "beta1", "beta2", "eps", "weight_decay", "amsgrad",
// "maximize", "stochastic_rounding". State: "exp_avg", "exp_avg_sq" and, with amsgrad,
// "max_exp_avg_sq". The formula is in kernels/optim/adam.h.

#include <memory>

#include "absl/status/statusor.h"
#include "core/optim/functional/functional_optimizer.h"

namespace psd::optim {

// Errors: the INVALID_ARGUMENT of OptimizerRegistry::Create.
absl::StatusOr<std::unique_ptr<FunctionalOptimizer>> NewAdam(const OptimizerSpec& spec);

// Creates Adam or AdamW. They differ in the way the parameter decays (`decoupled_decay`) and in the
// default of "weight_decay". Errors: as NewAdam.
absl::StatusOr<std::unique_ptr<FunctionalOptimizer>> NewAdamVariant(const OptimizerSpec& spec,
                                                                    bool decoupled_decay,
                                                                    double default_weight_decay);

}  // namespace psd::optim
