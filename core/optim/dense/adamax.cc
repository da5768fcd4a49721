#include "core/optim/dense/adamax.h"

#include <utility>
#include <vector>

#include "core/base/status.h"
#include "core/optim/dense/kernel_optimizer.h"
#include "core/optim/dense/optim_kernels.h"
#include "core/optim/functional/option_table.h"

namespace psd::optim {
namespace {

using Range = OptionRule::Range;

std::vector<OptionRule> AdamaxRules() {
  return {{"lr", 0.001, Range::kNotNegative},
          {"beta1", 0.9, Range::kBelowOne},
          {"beta2", 0.999, Range::kBelowOne},
          {"eps", 1e-08, Range::kNotNegative},
          {"weight_decay", 0, Range::kNotNegative},
          {"maximize", 0, Range::kFlag},
          StochasticRoundingRule()};
}

}  // namespace

absl::StatusOr<std::unique_ptr<FunctionalOptimizer>> NewAdamax(const OptimizerSpec& spec) {
  PSD_ASSIGN_OR_RETURN(OptimizerSpec complete, CompleteSpec(spec, AdamaxRules()));
  const auto option = [&](const char* name) { return complete.options.at(name); };
  kernels::AdamaxOptions options;
  options.lr = option("lr");
  options.beta1 = option("beta1");
  options.beta2 = option("beta2");
  options.eps = option("eps");
  options.weight_decay = option("weight_decay");
  options.maximize = option("maximize") != 0;
  std::vector<KernelSlot> slots = {{"exp_avg"}, {"exp_inf"}};
  return NewKernelOptimizer(std::move(complete), std::move(slots), BindKernel(kAdamax, options));
}

}  // namespace psd::optim
