#include "core/optim/dense/rprop.h"

#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/optim/dense/kernel_optimizer.h"
#include "core/optim/dense/optim_kernels.h"
#include "core/optim/functional/option_table.h"

namespace psd::optim {
namespace {

using Range = OptionRule::Range;

std::vector<OptionRule> RpropRules() {
  return {{"lr", 0.01, Range::kNotNegative},
          {"etaminus", 0.5, Range::kInsideUnit},
          {"etaplus", 1.2, Range::kAboveOne},
          {"step_size_min", 1e-06, Range::kNotNegative},
          {"step_size_max", 50, Range::kNotNegative},
          {"maximize", 0, Range::kFlag},
          StochasticRoundingRule()};
}

}  // namespace

absl::StatusOr<std::unique_ptr<FunctionalOptimizer>> NewRprop(const OptimizerSpec& spec) {
  PSD_ASSIGN_OR_RETURN(OptimizerSpec complete, CompleteSpec(spec, RpropRules()));
  const auto option = [&](const char* name) { return complete.options.at(name); };
  if (option("step_size_min") > option("step_size_max")) {
    return absl::InvalidArgumentError(
        absl::StrCat(spec.type, ": step_size_min = ", option("step_size_min"),
                     ", but it must be at most step_size_max = ", option("step_size_max")));
  }
  kernels::RpropOptions options;
  options.etaminus = option("etaminus");
  options.etaplus = option("etaplus");
  options.step_size_min = option("step_size_min");
  options.step_size_max = option("step_size_max");
  options.maximize = option("maximize") != 0;
  std::vector<KernelSlot> slots = {{"prev"}, {"step_size", option("lr")}};
  return NewKernelOptimizer(std::move(complete), std::move(slots), BindKernel(kRprop, options));
}

}  // namespace psd::optim
