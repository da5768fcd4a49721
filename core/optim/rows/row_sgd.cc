#include "core/optim/rows/row_sgd.h"

#include <vector>

#include "core/optim/rows/row_arrays.h"
#include "core/optim/rows/row_kernels.h"
#include "kernels/rows/rows_optim.h"

namespace psd::optim {
namespace {

class RowSgd : public RowOptimizer {
 public:
  explicit RowSgd(const OptimizerSpec& spec) : status_(CheckOptionsForRows(spec)) {
    options_.lr = spec.options.at("lr");
    options_.momentum = spec.options.at("momentum");
    options_.dampening = spec.options.at("dampening");
    options_.nesterov = spec.options.at("nesterov") != 0;
    options_.maximize = spec.options.at("maximize") != 0;
  }

  std::vector<RowSlot> Slots(DType dtype) const override {
    if (options_.momentum == 0) return {};
    return {{{"momentum_buffer", dtype, 0}, false}};
  }
  absl::Status CheckOptions() const override { return status_; }
  bool MovesWithoutGradient() const override { return options_.momentum != 0; }
  absl::Status CheckDevice(const Device& device) const override {
    return CheckRowKernels(kSgdRows, device);
  }
  void Apply(const RowArrays& arrays) const override {
    WithRowType(arrays, [&](auto zero) {
      using T = decltype(zero);
      kernels::SgdRows(options_, arrays.step, KernelRows<T>(arrays), RowState<T>(arrays, 0));
    });
  }
  void ApplyThere(Stream& stream, int64_t step,
                  const kernels::DeviceRowBatch& batch) const override {
    AddRowStep(kSgdRows, stream, options_, step, batch);
  }

 private:
  kernels::RowSgdOptions options_;
  const absl::Status status_;
};

}  // namespace

std::unique_ptr<RowOptimizer> NewRowSgd(const OptimizerSpec& spec) {
  return std::make_unique<RowSgd>(spec);
}

}  // namespace psd::optim
