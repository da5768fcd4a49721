#include "core/optim/adam.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "core/base/status.h"
#include "core/optim/option_table.h"
#include "core/optim/step_arrays.h"
#include "core/tensor/dtype.h"
#include "kernels/optim_adam.h"

namespace psd::optim {
namespace {

std::vector<OptionRule> AdamRules(double default_weight_decay) {
  using Range = OptionRule::Range;
  return {{"lr", 0.001, Range::kNotNegative},
          {"beta1", 0.9, Range::kBelowOne},
          {"beta2", 0.999, Range::kBelowOne},
          {"eps", 1e-8, Range::kNotNegative},
          {"weight_decay", default_weight_decay, Range::kNotNegative},
          {"amsgrad", 0, Range::kFlag},
          {"maximize", 0, Range::kFlag}};
}

class Adam : public FunctionalOptimizer {
 public:
  Adam(OptimizerSpec spec, bool decoupled_decay) : spec_(std::move(spec)) {
    const auto option = [this](const char* name) { return spec_.options.at(name); };
    options_.lr = option("lr");
    options_.beta1 = option("beta1");
    options_.beta2 = option("beta2");
    options_.eps = option("eps");
    options_.weight_decay = option("weight_decay");
    options_.decoupled_decay = decoupled_decay;
    options_.amsgrad = option("amsgrad") != 0;
    options_.maximize = option("maximize") != 0;
  }

  const OptimizerSpec& spec() const override { return spec_; }
  absl::Status CheckDType(DType dtype) const override { return CheckF32OrF64(spec_, dtype); }
  std::vector<StateSlot> Slots(DType dtype) const override {
    std::vector<StateSlot> slots = {{"exp_avg", dtype, 0}, {"exp_avg_sq", dtype, 0}};
    if (options_.amsgrad) slots.push_back({"max_exp_avg_sq", dtype, 0});
    return slots;
  }
  void Apply(const StepArrays& arrays) const override {
    if (arrays.dtype == DType::kF32) {
      Run<float>(arrays);
    } else {
      Run<double>(arrays);
    }
  }

 private:
  template <typename T>
  void Run(const StepArrays& arrays) const {
    const kernels::AdamState<T> state = {KernelState<T>(arrays, 0), KernelState<T>(arrays, 1),
                                         KernelState<T>(arrays, 2)};
    kernels::AdamStep(options_, arrays.step, KernelArrays<T>(arrays), state);
  }

  const OptimizerSpec spec_;
  kernels::AdamOptions options_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<FunctionalOptimizer>> NewAdamVariant(const OptimizerSpec& spec,
                                                                    bool decoupled_decay,
                                                                    double default_weight_decay) {
  PSD_ASSIGN_OR_RETURN(OptimizerSpec complete, CompleteSpec(spec, AdamRules(default_weight_decay)));
  return std::make_unique<Adam>(std::move(complete), decoupled_decay);
}

absl::StatusOr<std::unique_ptr<FunctionalOptimizer>> NewAdam(const OptimizerSpec& spec) {
  return NewAdamVariant(spec, /*decoupled_decay=*/false, /*default_weight_decay=*/0);
}

}  // namespace psd::optim
