#include "core/optim/dense/adamw.h"

#include "core/optim/dense/adam.h"

namespace psd::optim {

absl::StatusOr<std::unique_ptr<FunctionalOptimizer>> NewAdamW(const OptimizerSpec& spec) {
  return NewAdamVariant(spec, /*decoupled_decay=*/true, /*default_weight_decay=*/0.01);
}

}  // namespace psd::optim
