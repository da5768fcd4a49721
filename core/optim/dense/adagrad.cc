#include "core/optim/dense/adagrad.h"

#include <utility>
#include <vector>

#include "core/base/status.h"
#include "core/optim/dense/kernel_optimizer.h"
#include "core/optim/dense/optim_kernels.h"
#include "core/optim/functional/option_table.h"
#include "core/optim/rows/row_adagrad.h"

namespace psd::optim {
namespace {

using Range = OptionRule::Range;

std::vector<OptionRule> AdagradRules() {
  return {{"lr", 0.01, Range::kNotNegative},
          {"lr_decay", 0, Range::kNotNegative},
          {"weight_decay", 0, Range::kNotNegative},
          {"initial_accumulator_value", 0, Range::kNotNegative},
          {"eps", 1e-10, Range::kNotNegative},
          {"maximize", 0, Range::kFlag},
          StochasticRoundingRule()};
}

}  // namespace

absl::StatusOr<std::unique_ptr<FunctionalOptimizer>> NewAdagrad(const OptimizerSpec& spec) {
  PSD_ASSIGN_OR_RETURN(OptimizerSpec complete, CompleteSpec(spec, AdagradRules()));
  const auto option = [&](const char* name) { return complete.options.at(name); };
  kernels::AdagradOptions options;
  options.lr = option("lr");
  options.lr_decay = option("lr_decay");
  options.weight_decay = option("weight_decay");
  options.eps = option("eps");
  options.maximize = option("maximize") != 0;
  std::vector<KernelSlot> slots = {{"sum", option("initial_accumulator_value")}};
  auto rows = NewRowAdagrad(complete, AdagradState::kPerElement);
  return NewKernelOptimizer(std::move(complete), std::move(slots), BindKernel(kAdagrad, options),
                            std::move(rows));
}

}  // namespace psd::optim
