#include "core/optim/rows/sparse_adam.h"

#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/optim/functional/option_table.h"
#include "core/optim/rows/row_arrays.h"
#include "core/optim/rows/row_kernels.h"
#include "core/optim/rows/rows_only.h"
#include "kernels/rows/rows_optim.h"

namespace psd::optim {
namespace {

class SparseAdam : public RowOptimizer {
 public:
  explicit SparseAdam(const OptimizerSpec& spec) {
    options_.lr = spec.options.at("lr");
    options_.beta1 = spec.options.at("beta1");
    options_.beta2 = spec.options.at("beta2");
    options_.eps = spec.options.at("eps");
    options_.maximize = spec.options.at("maximize") != 0;
  }

  std::vector<RowSlot> Slots(DType dtype) const override {
    return {{{"exp_avg", dtype, 0}, false}, {{"exp_avg_sq", dtype, 0}, false}};
  }
  absl::Status CheckOptions() const override { return absl::OkStatus(); }
  absl::Status CheckDevice(const Device& device) const override {
    return CheckRowKernels(kSparseAdamRows, device);
  }
  void Apply(const RowArrays& arrays) const override {
    WithRowType(arrays, [&](auto zero) {
      using T = decltype(zero);
      kernels::SparseAdamRows(options_, arrays.step, KernelRows<T>(arrays), RowState<T>(arrays, 0),
                              RowState<T>(arrays, 1));
    });
  }
  void ApplyThere(Stream& stream, int64_t step,
                  const kernels::DeviceRowBatch& batch) const override {
    AddRowStep(kSparseAdamRows, stream, options_, step, batch);
  }

 private:
  kernels::SparseAdamOptions options_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<FunctionalOptimizer>> NewSparseAdam(const OptimizerSpec& spec) {
  using Range = OptionRule::Range;
  const std::vector<OptionRule> rules = {{"lr", 1e-3, Range::kNotNegative},
                                         {"beta1", 0.9, Range::kBelowOne},
                                         {"beta2", 0.999, Range::kBelowOne},
                                         {"eps", 1e-8, Range::kNotNegative},
                                         {"maximize", 0, Range::kFlag}};
  PSD_ASSIGN_OR_RETURN(OptimizerSpec complete, CompleteSpec(spec, rules));
  for (const char* option : {"lr", "eps"}) {
    if (complete.options.at(option) > 0) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(spec.type, ": ", option, " = 0, but it must be above 0"));
  }
  auto rows = std::make_unique<SparseAdam>(complete);
  return std::make_unique<RowsOnlyOptimizer>(std::move(complete), std::move(rows));
}

}  // namespace psd::optim
