#include "core/optim/stepped_parameter.h"

#include <algorithm>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/tensor/ops/elementwise.h"
#include "kernels/convert.h"
#include "kernels/optim_norm.h"

namespace psd::optim {
namespace {

template <typename T>
void Fill(Block& block, double value) {
  T* elements = reinterpret_cast<T*>(block.data());
  std::fill(elements, elements + block.size() / sizeof(T), static_cast<T>(value));
}

class DenseParameter : public SteppedParameter {
 public:
  // Requires: the entry's parameter has been acquired for steps.
  DenseParameter(store::EntryPtr entry, size_t group)
      : SteppedParameter(std::move(entry), group), parameter_(*this->entry()->parameter) {}
  ~DenseParameter() override { parameter_.ReleaseFromSteps(); }

  absl::Status Init(const FunctionalOptimizer& function, store::MemoryBudget& memory) {
    const auto elements = static_cast<size_t>(parameter_.shape().NumElements());
    PSD_ASSIGN_OR_RETURN(blocks_,
                         AllocateState(function.Slots(parameter_.dtype()), elements, memory));
    for (const StateBlock& each : blocks_) state_.push_back(each.block->data());
    return absl::OkStatus();
  }

  DType dtype() const override { return parameter_.dtype(); }
  store::Parameter* versions() const override { return &parameter_; }

  absl::Status Prepare(ParameterGradient& gradient) const override;
  absl::StatusOr<ParameterGradient> Sum(const ParameterGradient& a,
                                        const ParameterGradient& b) const override;
  double SumOfSquares(const ParameterGradient& gradient) const override;

  void Apply(const FunctionalOptimizer& function, const ParameterGradient& gradient,
             StepArrays arrays) override {
    arrays.gradient = gradient.gradient.raw_data();
    arrays.state = absl::MakeConstSpan(state_);
    arrays.elements = gradient.gradient.NumElements();
    arrays.dtype = gradient.gradient.dtype();
    arrays.step = NextStep();
    function.Apply(arrays);
  }

  std::vector<StateArray> state() const override {
    std::vector<StateArray> arrays;
    for (const StateBlock& each : blocks_)
      arrays.push_back({each.slot.name, each.slot.dtype, each.block->data(), each.block->size()});
    return arrays;
  }

 private:
  store::Parameter& parameter_;  // the entry's
  std::vector<StateBlock> blocks_;
  absl::InlinedVector<std::byte*, 3> state_;  // the blocks' data
};

absl::Status DenseParameter::Prepare(ParameterGradient& gradient) const {
  const Tensor& given = gradient.gradient;
  const bool fits = given.defined() && given.dtype() == parameter_.dtype() &&
                    given.device().IsCpu() && given.shape() == parameter_.shape();
  if (!fits) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the gradient for ", entry()->Label(), " must be ", DTypeName(parameter_.dtype()),
        parameter_.shape().ToString(), " on the cpu, not ", given.ToString()));
  }
  if (given.IsContiguous()) return absl::OkStatus();
  PSD_ASSIGN_OR_RETURN(gradient.gradient, given.Contiguous());
  return absl::OkStatus();
}

absl::StatusOr<ParameterGradient> DenseParameter::Sum(const ParameterGradient& a,
                                                      const ParameterGradient& b) const {
  ParameterGradient sum;
  sum.parameter = a.parameter;
  PSD_ASSIGN_OR_RETURN(sum.gradient, ops::Add(a.gradient, b.gradient));
  sum.version = OlderVersion(a.version, b.version);
  return sum;
}

double DenseParameter::SumOfSquares(const ParameterGradient& gradient) const {
  const Tensor& x = gradient.gradient;
  const auto size = static_cast<size_t>(x.NumElements());
  const auto sum_as = [&](auto element) {
    return kernels::SumOfSquares(reinterpret_cast<const decltype(element)*>(x.raw_data()), size);
  };
  switch (x.dtype()) {
    case DType::kF32:
      return sum_as(float{});
    case DType::kF64:
      return sum_as(double{});
    case DType::kF16:
      return sum_as(kernels::Half{});
    case DType::kBF16:
      return sum_as(kernels::BFloat16{});
    default:
      return 0;  // no optimizer steps integers
  }
}

}  // namespace

uint64_t OlderVersion(uint64_t a, uint64_t b) {
  return a == 0 || b == 0 ? std::max(a, b) : std::min(a, b);
}

absl::StatusOr<std::vector<StateBlock>> AllocateState(const std::vector<StateSlot>& slots,
                                                      size_t elements,
                                                      store::MemoryBudget& memory) {
  std::vector<StateBlock> blocks;
  for (const StateSlot& slot : slots) {
    PSD_CHECK(slot.dtype == DType::kF32 || slot.dtype == DType::kF64,
              "optimizer state is f32 or f64");
    PSD_ASSIGN_OR_RETURN(std::shared_ptr<Block> block,
                         memory.Allocate(elements * ItemSize(slot.dtype)));
    slot.dtype == DType::kF32 ? Fill<float>(*block, slot.initial)
                              : Fill<double>(*block, slot.initial);
    blocks.push_back({slot, std::move(block)});
  }
  return blocks;
}

absl::StatusOr<std::unique_ptr<SteppedParameter>> NewDenseParameter(
    store::EntryPtr entry, size_t group, const FunctionalOptimizer& function,
    store::MemoryBudget& memory) {
  if (entry->parameter == nullptr || !entry->parameter->requires_grad()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "it is a ", entry->KindName(),
        entry->parameter == nullptr ? "" : " that does not require grad", ", and ",
        function.spec().type, " steps parameters that do; create it with ", "requires_grad"));
  }
  PSD_RETURN_IF_ERROR(function.CheckDType(entry->parameter->dtype()));
  PSD_RETURN_IF_ERROR(entry->parameter->AcquireForSteps());
  auto parameter = std::make_unique<DenseParameter>(std::move(entry), group);
  PSD_RETURN_IF_ERROR(parameter->Init(function, memory));
  return std::unique_ptr<SteppedParameter>(std::move(parameter));
}

}  // namespace psd::optim
