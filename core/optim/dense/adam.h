#pragma once

// Adam: "lr", "beta1", "beta2", "eps", "weight_decay", "amsgrad", "maximize",
// "stochastic_rounding"; formula in kernels/optim/adam.h. State: "exp_avg", "exp_avg_sq",
// "max_exp_avg_sq" with amsgrad.

#include <memory>

#include "absl/status/statusor.h"
#include "core/optim/functional/functional_optimizer.h"

namespace psd::optim {

// Errors: INVALID_ARGUMENT as OptimizerRegistry::Create.
absl::StatusOr<std::unique_ptr<FunctionalOptimizer>> NewAdam(const OptimizerSpec& spec);

// What Adam and AdamW share: they differ in how and by default how much the parameter decays.
absl::StatusOr<std::unique_ptr<FunctionalOptimizer>> NewAdamVariant(const OptimizerSpec& spec,
                                                                    bool decoupled_decay,
                                                                    double default_weight_decay);

}  // namespace psd::optim
