#include "core/optim/dense/adadelta.h"

#include <utility>
#include <vector>

#include "core/base/status.h"
#include "core/optim/dense/kernel_optimizer.h"
#include "core/optim/dense/optim_kernels.h"
#include "core/optim/functional/option_table.h"

namespace psd::optim {
namespace {

using Range = OptionRule::Range;

std::vector<OptionRule> AdadeltaRules() {
  return {{"lr", 1, Range::kNotNegative},      {"rho", 0.9, Range::kUnit},
          {"eps", 1e-06, Range::kNotNegative}, {"weight_decay", 0, Range::kNotNegative},
          {"maximize", 0, Range::kFlag},       StochasticRoundingRule()};
}

}  // namespace

absl::StatusOr<std::unique_ptr<FunctionalOptimizer>> NewAdadelta(const OptimizerSpec& spec) {
  PSD_ASSIGN_OR_RETURN(OptimizerSpec complete, CompleteSpec(spec, AdadeltaRules()));
  const auto option = [&](const char* name) { return complete.options.at(name); };
  kernels::AdadeltaOptions options;
  options.lr = option("lr");
  options.rho = option("rho");
  options.eps = option("eps");
  options.weight_decay = option("weight_decay");
  options.maximize = option("maximize") != 0;
  std::vector<KernelSlot> slots = {{"square_avg"}, {"acc_delta"}};
  return NewKernelOptimizer(std::move(complete), std::move(slots), BindKernel(kAdadelta, options));
}

}  // namespace psd::optim
