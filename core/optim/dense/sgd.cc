#include "core/optim/dense/sgd.h"

#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/optim/dense/kernel_optimizer.h"
#include "core/optim/dense/optim_kernels.h"
#include "core/optim/functional/option_table.h"
#include "core/optim/rows/row_sgd.h"

namespace psd::optim {
namespace {

using Range = OptionRule::Range;

std::vector<OptionRule> SgdRules() {
  return {{"lr", 0.01, Range::kNotNegative}, {"momentum", 0, Range::kNotNegative},
          {"dampening", 0, Range::kFinite},  {"weight_decay", 0, Range::kNotNegative},
          {"nesterov", 0, Range::kFlag},     {"maximize", 0, Range::kFlag},
          StochasticRoundingRule()};
}

}  // namespace

absl::StatusOr<std::unique_ptr<FunctionalOptimizer>> NewSgd(const OptimizerSpec& spec) {
  PSD_ASSIGN_OR_RETURN(OptimizerSpec complete, CompleteSpec(spec, SgdRules()));
  const auto option = [&](const char* name) { return complete.options.at(name); };
  if (option("nesterov") != 0 && (option("momentum") <= 0 || option("dampening") != 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat(spec.type, ": nesterov needs momentum above 0 and dampening 0, not ",
                     option("momentum"), " and ", option("dampening")));
  }
  kernels::SgdOptions options;
  options.lr = option("lr");
  options.momentum = option("momentum");
  options.dampening = option("dampening");
  options.weight_decay = option("weight_decay");
  options.nesterov = option("nesterov") != 0;
  options.maximize = option("maximize") != 0;
  std::vector<KernelSlot> slots;
  if (options.momentum != 0) slots = {{"momentum_buffer"}};
  auto rows = NewRowSgd(complete);
  return NewKernelOptimizer(std::move(complete), std::move(slots), BindKernel(kSgd, options),
                            std::move(rows));
}

}  // namespace psd::optim
