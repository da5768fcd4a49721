#include "core/optim/dense/rmsprop.h"

#include <utility>
#include <vector>

#include "core/base/status.h"
#include "core/optim/dense/kernel_optimizer.h"
#include "core/optim/dense/optim_kernels.h"
#include "core/optim/functional/option_table.h"

namespace psd::optim {
namespace {

using Range = OptionRule::Range;

std::vector<OptionRule> RmsPropRules() {
  return {{"lr", 0.01, Range::kNotNegative},    {"alpha", 0.99, Range::kNotNegative},
          {"eps", 1e-08, Range::kNotNegative},  {"weight_decay", 0, Range::kNotNegative},
          {"momentum", 0, Range::kNotNegative}, {"centered", 0, Range::kFlag},
          {"maximize", 0, Range::kFlag},        StochasticRoundingRule()};
}

}  // namespace

absl::StatusOr<std::unique_ptr<FunctionalOptimizer>> NewRmsProp(const OptimizerSpec& spec) {
  PSD_ASSIGN_OR_RETURN(OptimizerSpec complete, CompleteSpec(spec, RmsPropRules()));
  const auto option = [&](const char* name) { return complete.options.at(name); };
  kernels::RmsPropOptions options;
  options.lr = option("lr");
  options.alpha = option("alpha");
  options.eps = option("eps");
  options.weight_decay = option("weight_decay");
  options.momentum = option("momentum");
  options.centered = option("centered") != 0;
  options.maximize = option("maximize") != 0;
  std::vector<KernelSlot> slots = {{"square_avg"}};
  if (options.momentum != 0) slots.push_back({"momentum_buffer"});
  if (options.centered) slots.push_back({"grad_avg"});
  return NewKernelOptimizer(std::move(complete), std::move(slots), BindKernel(kRmsProp, options));
}

}  // namespace psd::optim
