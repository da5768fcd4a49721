#include "core/optim/dense/kernel_optimizer.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/device.h"
#include "core/tensor/dtype.h"

namespace psd::optim {
namespace {

static_assert(kPartElements == kernels::kOptimPartElements);

// The most arrays in one kernel call. They are gathered on the stack.
constexpr size_t kBatchArrays = 64;

kernels::OptimType KernelType(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return kernels::OptimType::kF64;
    case DType::kF16:
      return kernels::OptimType::kF16;
    case DType::kBF16:
      return kernels::OptimType::kBF16;
    default:
      return kernels::OptimType::kF32;
  }
}

// Whether one kernel call can step both arrays.
bool SameBatch(const StepArrays& a, const StepArrays& b) {
  return a.device == b.device && a.dtype == b.dtype && a.step == b.step &&
         a.gradient_scale == b.gradient_scale && a.gradient_limit == b.gradient_limit;
}

kernels::OptimArrays KernelArrays(const StepArrays& from) {
  kernels::OptimArrays arrays;
  arrays.parameter = from.parameter;
  arrays.next = from.next;
  arrays.gradient = from.gradient;
  std::copy(from.state.begin(), from.state.end(), arrays.state);
  arrays.size = static_cast<size_t>(from.elements);
  arrays.first_element = static_cast<uint64_t>(from.first_element);
  arrays.rounding_seed = from.rounding_seed;
  return arrays;
}

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

  void Apply(const StepArrays& arrays) const override { ApplyAll({&arrays, 1}); }

  void ApplyAll(absl::Span<const StepArrays> all) const override {
    kernels::OptimArrays arrays[kBatchArrays];
    for (size_t i = 0; i < all.size();) {
      const StepArrays& first = all[i];
      kernels::OptimBatch batch;
      batch.type = KernelType(first.dtype);
      batch.step = first.step;
      batch.arrays = arrays;
      batch.gradient_scale = first.gradient_scale;
      batch.gradient_limit = first.gradient_limit;
      batch.stochastic_rounding = stochastic_rounding_;
      for (; i < all.size() && batch.count < kBatchArrays && SameBatch(first, all[i]); ++i)
        arrays[batch.count++] = KernelArrays(all[i]);
      kernel_.run(first.device, batch);
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
