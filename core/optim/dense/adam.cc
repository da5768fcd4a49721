#include "core/optim/dense/adam.h"

#include <utility>
#include <vector>

#include "core/base/status.h"
#include "core/optim/dense/kernel_optimizer.h"
#include "core/optim/dense/optim_kernels.h"
#include "core/optim/functional/option_table.h"

namespace psd::optim {
namespace {

using Range = OptionRule::Range;

std::vector<OptionRule> AdamRules(double default_weight_decay) {
  return {{"lr", 0.001, Range::kNotNegative},
          {"beta1", 0.9, Range::kBelowOne},
          {"beta2", 0.999, Range::kBelowOne},
          {"eps", 1e-8, Range::kNotNegative},
          {"weight_decay", default_weight_decay, Range::kNotNegative},
          {"amsgrad", 0, Range::kFlag},
          {"maximize", 0, Range::kFlag},
          StochasticRoundingRule()};
}

}  // namespace

absl::StatusOr<std::unique_ptr<FunctionalOptimizer>> NewAdamVariant(const OptimizerSpec& spec,
                                                                    bool decoupled_decay,
                                                                    double default_weight_decay) {
  PSD_ASSIGN_OR_RETURN(OptimizerSpec complete, CompleteSpec(spec, AdamRules(default_weight_decay)));
  const auto option = [&](const char* name) { return complete.options.at(name); };
  kernels::AdamOptions options;
  options.lr = option("lr");
  options.beta1 = option("beta1");
  options.beta2 = option("beta2");
  options.eps = option("eps");
  options.weight_decay = option("weight_decay");
  options.decoupled_decay = decoupled_decay;
  options.amsgrad = option("amsgrad") != 0;
  options.maximize = option("maximize") != 0;
  std::vector<KernelSlot> slots = {{"exp_avg"}, {"exp_avg_sq"}};
  if (options.amsgrad) slots.push_back({"max_exp_avg_sq"});
  return NewKernelOptimizer(std::move(complete), std::move(slots), BindKernel(kAdam, options));
}

absl::StatusOr<std::unique_ptr<FunctionalOptimizer>> NewAdam(const OptimizerSpec& spec) {
  return NewAdamVariant(spec, /*decoupled_decay=*/false, /*default_weight_decay=*/0);
}

}  // namespace psd::optim
