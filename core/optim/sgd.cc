#include "core/optim/sgd.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/optim/option_table.h"
#include "core/optim/row_sgd.h"
#include "core/optim/step_arrays.h"
#include "core/tensor/dtype.h"
#include "kernels/optim_sgd.h"

namespace psd::optim {
namespace {

std::vector<OptionRule> SgdRules() {
  using Range = OptionRule::Range;
  return {{"lr", 0.01, Range::kNotNegative}, {"momentum", 0, Range::kNotNegative},
          {"dampening", 0, Range::kFinite},  {"weight_decay", 0, Range::kNotNegative},
          {"nesterov", 0, Range::kFlag},     {"maximize", 0, Range::kFlag}};
}

class Sgd : public FunctionalOptimizer {
 public:
  explicit Sgd(OptimizerSpec spec) : spec_(std::move(spec)), rows_(NewRowSgd(spec_)) {
    const auto option = [this](const char* name) { return spec_.options.at(name); };
    options_.lr = option("lr");
    options_.momentum = option("momentum");
    options_.dampening = option("dampening");
    options_.weight_decay = option("weight_decay");
    options_.nesterov = option("nesterov") != 0;
    options_.maximize = option("maximize") != 0;
  }

  const OptimizerSpec& spec() const override { return spec_; }
  const RowOptimizer* rows() const override { return rows_.get(); }
  absl::Status CheckDType(DType dtype) const override { return CheckF32OrF64(spec_, dtype); }
  std::vector<StateSlot> Slots(DType dtype) const override {
    if (options_.momentum == 0) return {};
    return {{"momentum_buffer", dtype, 0}};
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
    kernels::SgdStep(options_, arrays.step, KernelArrays<T>(arrays), KernelState<T>(arrays, 0));
  }

  const OptimizerSpec spec_;
  const std::unique_ptr<RowOptimizer> rows_;
  kernels::SgdOptions options_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<FunctionalOptimizer>> NewSgd(const OptimizerSpec& spec) {
  PSD_ASSIGN_OR_RETURN(OptimizerSpec complete, CompleteSpec(spec, SgdRules()));
  const double momentum = complete.options.at("momentum");
  const double dampening = complete.options.at("dampening");
  if (complete.options.at("nesterov") != 0 && (momentum <= 0 || dampening != 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat(spec.type, ": nesterov needs momentum above 0 and dampening 0, not ", momentum,
                     " and ", dampening));
  }
  return std::make_unique<Sgd>(std::move(complete));
}

}  // namespace psd::optim
