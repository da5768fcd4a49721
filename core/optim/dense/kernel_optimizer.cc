#include "core/optim/dense/kernel_optimizer.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/device.h"
#include "core/tensor/dtype.h"

namespace psd::optim {
namespace {

// The most arrays in one kernel call on the host. A kernel decides for all arrays of a call
// together whether it writes past the caches, so a call should not have so many small ones that
// they fill the caches. On a device all arrays are one launch.
constexpr size_t kBatchArrays = 64;

class KernelOptimizer : public FunctionalOptimizer {
 public:
  KernelOptimizer(OptimizerSpec spec, std::vector<KernelSlot> slots, Kernel kernel,
                  std::unique_ptr<RowOptimizer> rows)
      : spec_(std::move(spec)),
        slots_(std::move(slots)),
        kernel_(std::move(kernel)),
        rows_(std::move(rows)),
        stochastic_rounding_(spec_.options.at(StochasticRoundingRule().name) != 0) {}

  const OptimizerSpec& spec() const override { return spec_; }
  const RowOptimizer* rows() const override { return rows_.get(); }

  std::vector<StateSlot> Slots(DType dtype) const override {
    const DType state_dtype = dtype == DType::kF64 ? DType::kF64 : DType::kF32;
    std::vector<StateSlot> slots;
    for (const KernelSlot& slot : slots_) slots.push_back({slot.name, state_dtype, slot.initial});
    return slots;
  }

  absl::Status CheckDType(DType dtype) const override {
    if (dtype != DType::kF32 && dtype != DType::kF64 && dtype != DType::kBF16 &&
        dtype != DType::kF16) {
      return absl::InvalidArgumentError(absl::StrCat(
          spec_.type, " steps parameters of f32, f64, bf16 and f16, not ", DTypeName(dtype)));
    }
    if (stochastic_rounding_ && dtype != DType::kBF16) {
      return absl::InvalidArgumentError(
          absl::StrCat(spec_.type, ": stochastic_rounding = 1, but it must be 0 for parameters of ",
                       DTypeName(dtype), "; it is for bf16 only"));
    }
    return absl::OkStatus();
  }

  absl::Status CheckDevice(const Device* device) const override {
    if (device == nullptr || kernel_.is_on(*device)) return absl::OkStatus();
    return NotOnDevice(spec_.type, device);
  }

  void Apply(Stream* stream, const kernels::OptimBatch& batch) const override {
    kernels::OptimBatch call = batch;
    call.stochastic_rounding = stochastic_rounding_;
    const size_t most = stream == nullptr ? kBatchArrays : batch.count;
    for (size_t first = 0; first < batch.count; first += most) {
      call.arrays = batch.arrays + first;
      call.count = std::min(most, batch.count - first);
      kernel_.run(stream, call);
    }
  }

 private:
  const OptimizerSpec spec_;
  const std::vector<KernelSlot> slots_;
  const Kernel kernel_;
  const std::unique_ptr<RowOptimizer> rows_;
  const bool stochastic_rounding_;
};

}  // namespace

OptionRule StochasticRoundingRule() {
  return {"stochastic_rounding", 0, OptionRule::Range::kFlag};
}

std::unique_ptr<FunctionalOptimizer> NewKernelOptimizer(OptimizerSpec spec,
                                                        std::vector<KernelSlot> slots,
                                                        Kernel kernel,
                                                        std::unique_ptr<RowOptimizer> rows) {
  return std::make_unique<KernelOptimizer>(std::move(spec), std::move(slots), std::move(kernel),
                                           std::move(rows));
}

}  // namespace psd::optim
