#include "core/optim/parameters/stepped_parameter.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "core/base/device.h"
#include "core/base/remedy.h"
#include "core/base/status.h"
#include "core/optim/rows/row_batches.h"
#include "core/tensor/copy_to.h"
#include "core/tensor/ops/sum.h"

namespace psd::optim {
namespace {

template <typename T>
void Fill(Block& block, double value) {
  T* elements = reinterpret_cast<T*>(block.data());
  std::fill(elements, elements + block.size() / sizeof(T), static_cast<T>(value));
}

// Sets all elements of the slot's array to its initial value. Errors: those of the device.
absl::Status Initialise(const StateSlot& slot, Block& block) {
  if (Device* const device = block.place().device(); device != nullptr) {
    constexpr size_t kPieceBytes = size_t{1} << 20;
    const size_t piece = std::min(block.size(), kPieceBytes);
    PSD_ASSIGN_OR_RETURN(const std::shared_ptr<Block> here, NewHeapAllocator()->Allocate(piece));
    PSD_RETURN_IF_ERROR(Initialise(slot, *here));
    for (size_t at = 0; at < block.size(); at += piece) {
      PSD_RETURN_IF_ERROR(CopyBytes(device, block.data() + at, nullptr, here->data(),
                                    std::min(piece, block.size() - at)));
    }
    return absl::OkStatus();
  }
  slot.dtype == DType::kF32 ? Fill<float>(block, slot.initial) : Fill<double>(block, slot.initial);
  return absl::OkStatus();
}

// Checks that this type of optimizer takes sparse gradients for dense parameters.
absl::Status CheckSparse(const FunctionalOptimizer& function) {
  if (function.rows() != nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(function.spec().type, " takes dense gradients only, and rows were looked up: ",
                   "fetch the parameter whole, or step it with sgd or adagrad"));
}

// Returns the bytes of one row of a matrix; 0 for a parameter of another rank.
size_t RowBytes(const store::Parameter& parameter) {
  if (parameter.shape().rank() != 2) return 0;
  return static_cast<size_t>(parameter.shape()[1]) * ItemSize(parameter.dtype());
}

// Makes a prepared gradient dense if it is sparse.
absl::Status MakeDense(ParameterGradient& gradient) {
  if (gradient.rows == nullptr) return absl::OkStatus();
  PSD_ASSIGN_OR_RETURN(gradient.gradient, gradient.rows->entries.ToDense());
  gradient.rows = nullptr;
  gradient.sparse.clear();
  return absl::OkStatus();
}

class DenseParameter : public SteppedParameter {
 public:
  // Requires: `parameter` is the entry's and has been acquired for steps.
  DenseParameter(store::EntryPtr entry, size_t group, store::Parameter& parameter,
                 const FunctionalOptimizer& function)
      : SteppedParameter(std::move(entry), group, parameter.dtype(), parameter.device()),
        parameter_(parameter),
        shape_(parameter_.shape()),
        elements_(shape_.NumElements()),
        sparse_status_(CheckSparse(function)),
        sparse_becomes_dense_(
            function.rows() != nullptr &&
            (parameter_.device() != nullptr || function.rows()->MovesWithoutGradient())) {}
  ~DenseParameter() override { parameter_.ReleaseFromSteps(); }

  absl::Status Init(const FunctionalOptimizer& function) {
    const std::vector<StateSlot> slots = function.Slots(dtype());
    PSD_CHECK(slots.size() <= kernels::kMaxOptimStates, "no optimizer has more arrays of state");
    const DType state_dtype = dtype() == DType::kF64 ? DType::kF64 : DType::kF32;
    for (const StateSlot& slot : slots)
      PSD_CHECK(slot.dtype == state_dtype, "kernels cut state by this dtype");
    PSD_ASSIGN_OR_RETURN(
        blocks_, AllocateState(slots, static_cast<size_t>(elements_), parameter_.allocator()));
    if (device() != nullptr) {
      PSD_ASSIGN_OR_RETURN(gradient_, parameter_.allocator().Allocate(Bytes()));
    }
    for (const StateBlock& each : blocks_) state_.push_back(each.block->data());
    return absl::OkStatus();
  }

  store::Parameter* versions() const override { return &parameter_; }
  uint64_t version() const override { return parameter_.version(); }
  absl::Status CheckOptions(const FunctionalOptimizer& function) const override {
    return function.CheckDType(dtype());
  }

  absl::Status Prepare(ParameterGradient& gradient) const override;
  absl::StatusOr<ParameterGradient> Sum(const ParameterGradient& a,
                                        const ParameterGradient& b) const override;
  absl::Status Round(ParameterGradient& sum) const override;

  // A step writes a whole new version, even if its gradient has only a few rows.
  int64_t StepElements(const ParameterGradient& /*gradient*/) const override { return elements_; }
  absl::StatusOr<bool> BeginStep(store::Changing, const ParameterGradient& gradient,
                                 kernels::OptimArrays& arrays, StepMemory& memory) override;
  void ApplyRows(store::Changing, const RowOptimizer& function, const ParameterGradient& gradient,
                 RowArrays rows, const Helpers& helpers) override;

  std::vector<StateArray> state() const override { return StateArrays(blocks_); }

 private:
  absl::Status PrepareSparse(ParameterGradient& gradient) const;
  size_t Bytes() const { return static_cast<size_t>(elements_) * ItemSize(dtype()); }

  store::Parameter& parameter_;  // the entry's
  const Shape shape_;
  const int64_t elements_;
  absl::InlinedVector<std::byte*, 3> state_;  // the blocks' data
  std::vector<StateBlock> blocks_;
  // Where each step puts its gradient, in the memory of device(); null on the host. Not shared.
  std::shared_ptr<Block> gradient_;
  const absl::Status sparse_status_;  // whether the optimizer's type takes sparse gradients
  // Sparse gradients are made dense if a step also moves rows without a gradient, and on devices,
  // where a kernel makes the whole new version.
  const bool sparse_becomes_dense_;
};

absl::Status DenseParameter::Prepare(ParameterGradient& gradient) const {
  const Tensor& given = *gradient.gradient;
  if (!given.defined() && !gradient.sparse.empty()) return PrepareSparse(gradient);
  const bool fits = given.defined() && gradient.rounds_to.value_or(given.dtype()) == dtype() &&
                    given.shape() == shape_;
  if (!fits) {
    return absl::InvalidArgumentError(absl::StrCat("the gradient for ", entry()->Label(),
                                                   " must be ", DTypeName(dtype()),
                                                   shape_.ToString(), ", not ", given.ToString()));
  }
  const bool usable = given.OnHost() || given.device() == device();
  if (usable && given.IsContiguous()) return absl::OkStatus();
  Tensor moved = given;
  if (!usable) {
    PSD_ASSIGN_OR_RETURN(moved, given.ToHost());
  }
  PSD_ASSIGN_OR_RETURN(gradient.gradient, moved.Contiguous());
  return absl::OkStatus();
}

absl::Status DenseParameter::PrepareSparse(ParameterGradient& gradient) const {
  PSD_RETURN_IF_ERROR(Annotate(sparse_status_, entry()->Label()));
  if (dtype() != DType::kF32 && dtype() != DType::kF64) {
    return WithRemedy(
        absl::InvalidArgumentError(absl::StrCat(entry()->Label(), " is of ", DTypeName(dtype()),
                                                ", and sparse gradients are for f32 and f64")),
        "give a dense one");
  }
  for (const SparseTensor& part : gradient.sparse) {
    if (part.shape() == shape_ && part.dtype() == dtype()) continue;
    return absl::InvalidArgumentError(absl::StrCat("the gradient for ", entry()->Label(),
                                                   " must be ", DTypeName(dtype()),
                                                   shape_.ToString(), ", not ", part.ToString()));
  }
  PSD_ASSIGN_OR_RETURN(gradient.rows, GroupEntries(gradient.sparse));
  gradient.sparse = {gradient.rows->entries};
  gradient.from_sparse = true;
  return sparse_becomes_dense_ ? MakeDense(gradient) : absl::OkStatus();
}

absl::StatusOr<ParameterGradient> DenseParameter::Sum(const ParameterGradient& a,
                                                      const ParameterGradient& b) const {
  ParameterGradient sum;
  sum.parameter = a.parameter;
  sum.version = a.version;
  sum.version.Add(b.version);
  sum.from_sparse = a.from_sparse || b.from_sparse;
  if (a.rows != nullptr && b.rows != nullptr) {
    PSD_ASSIGN_OR_RETURN(sum.rows, GroupEntries({a.rows->entries, b.rows->entries}));
    return sum;
  }
  ParameterGradient dense_a = a, dense_b = b;
  PSD_RETURN_IF_ERROR(MakeDense(dense_a));
  PSD_RETURN_IF_ERROR(MakeDense(dense_b));
  // The dense gradient in f32 goes first: a sum may be in f32 although the parameter is not. The
  // sum is where the first one is, and on the device if any of them is and there is room.
  const bool a_is_sum = dense_a.gradient->dtype() != dtype();
  const bool b_is_sum = dense_b.gradient->dtype() != dtype();
  const bool only_b_is_there = dense_a.gradient->OnHost() && !dense_b.gradient->OnHost();
  if (a_is_sum == b_is_sum ? only_b_is_there : b_is_sum) std::swap(dense_a, dense_b);
  if (dense_a.gradient->OnHost() && !dense_b.gradient->OnHost()) {
    absl::StatusOr<Tensor> there = CopyTo(device(), *dense_a.gradient);
    if (there.ok()) {
      dense_a.gradient = *std::move(there);
    } else if (!absl::IsResourceExhausted(there.status())) {
      return there.status();
    }
  }
  PSD_ASSIGN_OR_RETURN(sum.gradient, ops::AddToSumWhereRoom(*dense_a.gradient, *dense_b.gradient));
  return sum;
}

absl::Status DenseParameter::Round(ParameterGradient& sum) const {
  if (!sum.gradient->defined() || sum.gradient->dtype() == dtype()) return absl::OkStatus();
  PSD_ASSIGN_OR_RETURN(sum.gradient, ops::RoundSumWhereRoom(*sum.gradient, dtype()));
  return absl::OkStatus();
}

absl::StatusOr<bool> DenseParameter::BeginStep(store::Changing, const ParameterGradient& gradient,
                                               kernels::OptimArrays& arrays, StepMemory& memory) {
  if (gradient.rows != nullptr) return false;
  arrays.gradient = gradient.gradient->address();
  if (gradient.gradient->device() != device()) {
    const SentPart whole{gradient.gradient->raw_data(), Bytes(), 0};
    PSD_RETURN_IF_ERROR(SendParts(*device(), {whole}, *gradient_, memory));
    arrays.gradient = gradient_->data();
  }
  std::copy(state_.begin(), state_.end(), arrays.state);
  arrays.size = static_cast<size_t>(elements_);
  NextStep();
  return true;
}

// Copies the old version, then replaces the rows that have a gradient.
void DenseParameter::ApplyRows(store::Changing, const RowOptimizer& function,
                               const ParameterGradient& gradient, RowArrays rows,
                               const Helpers& helpers) {
  std::byte* const next = rows.next;
  if (next != rows.table && elements_ > 0) std::memcpy(next, rows.table, Bytes());
  rows.width = static_cast<size_t>(shape_[1]);
  rows.gradients = gradient.rows->entries.values().raw_data();
  rows.state = absl::MakeConstSpan(state_);
  rows.dtype = dtype();
  rows.step = NextStep();
  const size_t row_bytes = RowBytes(parameter_);
  StepRows(function, *gradient.rows->groups, rows, helpers,
           [&](absl::Span<const int64_t> ids, const std::byte* changed) {
             for (size_t i = 0; i < ids.size(); ++i) {
               std::memcpy(next + static_cast<size_t>(ids[i]) * row_bytes, changed + i * row_bytes,
                           row_bytes);
             }
           });
}

}  // namespace

absl::StatusOr<std::vector<StateBlock>> AllocateState(const std::vector<StateSlot>& slots,
                                                      size_t elements, Allocator& memory) {
  std::vector<StateBlock> blocks;
  for (const StateSlot& slot : slots) {
    PSD_CHECK(slot.dtype == DType::kF32 || slot.dtype == DType::kF64,
              "optimizer state is f32 or f64");
    PSD_ASSIGN_OR_RETURN(std::shared_ptr<Block> block,
                         memory.Allocate(elements * ItemSize(slot.dtype)));
    PSD_RETURN_IF_ERROR(Initialise(slot, *block));
    blocks.push_back({slot, std::move(block)});
  }
  return blocks;
}

std::vector<StateArray> StateArrays(const std::vector<StateBlock>& blocks) {
  std::vector<StateArray> arrays;
  for (const StateBlock& each : blocks)
    arrays.push_back({each.slot.name, each.slot.dtype, each.block->data(), each.block->size(),
                      each.block->place().device()});
  return arrays;
}

absl::Status CheckDenseParameter(const store::Entry& entry, const FunctionalOptimizer& function) {
  if (entry.parameter == nullptr || !entry.parameter->requires_grad()) {
    return WithRemedy(absl::InvalidArgumentError(absl::StrCat(
                          "it is a ", entry.KindName(),
                          entry.parameter == nullptr ? "" : " that does not require grad", ", and ",
                          function.spec().type, " steps parameters that do")),
                      "create it with requires_grad");
  }
  PSD_RETURN_IF_ERROR(function.CheckDevice(entry.parameter->device()));
  return function.CheckDType(entry.parameter->dtype());
}

absl::StatusOr<std::unique_ptr<SteppedParameter>> NewDenseParameter(
    store::EntryPtr entry, size_t group, const FunctionalOptimizer& function) {
  store::Parameter& versions = *entry->parameter;
  PSD_RETURN_IF_ERROR(versions.AcquireForSteps());
  auto parameter = std::make_unique<DenseParameter>(std::move(entry), group, versions, function);
  PSD_RETURN_IF_ERROR(parameter->Init(function));
  return std::unique_ptr<SteppedParameter>(std::move(parameter));
}

}  // namespace psd::optim
