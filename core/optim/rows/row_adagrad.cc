#include "core/optim/rows/row_adagrad.h"

#include <vector>

#include "core/optim/rows/row_arrays.h"
#include "core/optim/rows/row_kernels.h"
#include "kernels/rows/rows_optim.h"

namespace psd::optim {
namespace {

class RowAdagrad : public RowOptimizer {
 public:
  RowAdagrad(const OptimizerSpec& spec, AdagradState state)
      : state_(state),
        initial_(spec.options.at("initial_accumulator_value")),
        status_(CheckOptionsForRows(spec)) {
    options_.lr = spec.options.at("lr");
    options_.lr_decay = spec.options.at("lr_decay");
    options_.eps = spec.options.at("eps");
    options_.maximize = spec.options.at("maximize") != 0;
  }

  std::vector<RowSlot> Slots(DType dtype) const override {
    return {{{"sum", dtype, initial_}, state_ == AdagradState::kPerRow}};
  }
  absl::Status CheckOptions() const override { return status_; }
  // Without eps a row that never had another gradient is divided by zero. Kernels may round eps to
  // f32.
  bool KeepsRowsOfZeroGradient() const override { return static_cast<float>(options_.eps) != 0; }
  absl::Status CheckDevice(const Device& device) const override {
    return CheckRowKernels(kernel(), device);
  }
  void Apply(const RowArrays& arrays) const override {
    WithRowType(arrays, [&](auto zero) {
      using T = decltype(zero);
      if (state_ == AdagradState::kPerRow) {
        kernels::RowwiseAdagradRows(options_, arrays.step, KernelRows<T>(arrays),
                                    RowState<T>(arrays, 0));
      } else {
        kernels::AdagradRows(options_, arrays.step, KernelRows<T>(arrays), RowState<T>(arrays, 0));
      }
    });
  }
  void ApplyThere(Stream& stream, int64_t step,
                  const kernels::DeviceRowBatch& batch) const override {
    AddRowStep(kernel(), stream, options_, step, batch);
  }

 private:
  const StepRowsName<kernels::RowAdagradOptions>& kernel() const {
    return state_ == AdagradState::kPerRow ? kRowwiseAdagradRows : kAdagradRows;
  }

  const AdagradState state_;
  const double initial_;
  kernels::RowAdagradOptions options_;
  const absl::Status status_;
};

}  // namespace

std::unique_ptr<RowOptimizer> NewRowAdagrad(const OptimizerSpec& spec, AdagradState state) {
  return std::make_unique<RowAdagrad>(spec, state);
}

}  // namespace psd::optim
