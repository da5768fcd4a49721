#include "core/optim/parameters/stepped_rows.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/buffer.h"
#include "core/base/device.h"
#include "core/base/parallel_for.h"
#include "core/base/remedy.h"
#include "core/base/status.h"
#include "core/base/stream.h"
#include "core/optim/functional/row_optimizer.h"
#include "core/optim/parameters/device_gradient.h"
#include "core/optim/parameters/step_memory.h"
#include "core/optim/rows/row_batches.h"
#include "core/optim/rows/sparse_gradient.h"
#include "core/store/changing.h"
#include "core/store/rows.h"
#include "core/tensor/tensor.h"
#include "kernels/optim/arrays.h"
#include "kernels/rows/device_rows.h"
#include "kernels/rows/rows.h"

namespace psd::optim {
namespace {

// Returns `groups` with the ids of `extra` (ascending) merged into its ids. An id that only `extra`
// has gets no positions, because no entry of the gradient belongs to it.
kernels::RowGroups WithIds(const kernels::RowGroups& groups, const std::vector<int64_t>& extra) {
  kernels::RowGroups all;
  all.positions = groups.positions;
  size_t next = 0;
  for (size_t k = 0; k < groups.ids.size(); ++k) {
    for (; next < extra.size() && extra[next] <= groups.ids[k]; ++next) {
      if (extra[next] == groups.ids[k]) continue;
      all.ids.push_back(extra[next]);
      all.begins.push_back(groups.begins[k]);
    }
    all.ids.push_back(groups.ids[k]);
    all.begins.push_back(groups.begins[k]);
  }
  for (; next < extra.size(); ++next) {
    all.ids.push_back(extra[next]);
    all.begins.push_back(groups.begins.back());
  }
  all.begins.push_back(groups.begins.back());
  return all;
}

class SteppedRows : public SteppedParameter {
 public:
  SteppedRows(store::EntryPtr entry, size_t group, std::shared_ptr<store::Rows> rows,
              const RowOptimizer& function)
      : SteppedParameter(std::move(entry), group, rows->dtype(), rows->device()),
        rows_(std::move(rows)),
        moves_without_gradient_(function.MovesWithoutGradient()) {}

  absl::Status Init(const RowOptimizer& function, MemoryAccount& memory);

  store::Parameter* versions() const override { return nullptr; }
  uint64_t version() const override { return rows_->version(); }
  absl::Status CheckOptions(const FunctionalOptimizer& function) const override {
    return function.rows()->CheckOptions();
  }
  absl::Status Prepare(ParameterGradient& gradient) const override;
  absl::StatusOr<ParameterGradient> Sum(const ParameterGradient& a,
                                        const ParameterGradient& b) const override;
  int64_t StepElements(const ParameterGradient& gradient) const override {
    return gradient.rows->entries.values().NumElements() +
           static_cast<int64_t>(touched_.size() * rows_->width());
  }
  absl::StatusOr<bool> BeginStep(store::Changing, const ParameterGradient& gradient,
                                 kernels::OptimArrays& arrays, StepMemory& memory) override;
  void ApplyRows(store::Changing changing, const RowOptimizer& function,
                 const ParameterGradient& gradient, RowArrays all, const Helpers& helpers) override;
  void AbandonStep(store::Changing changing, int64_t steps) override {
    SteppedParameter::AbandonStep(changing, steps);
    begun_.reset();
  }
  absl::Status StateReplaced() override;
  std::vector<StateArray> state() const override { return StateArrays(blocks_); }

 private:
  // A step that has begun on a device and is not applied yet.
  struct Begun {
    DeviceGradient gradient;
    std::vector<int64_t> touched;  // as touched_, after the step
  };

  // Joins the parts of a gradient, and groups them if the host does that.
  absl::StatusOr<std::shared_ptr<const SparseGradient>> Join(
      absl::Span<const SparseTensor> parts) const {
    return device() == nullptr || moves_without_gradient_ ? GroupEntries(parts)
                                                          : JoinEntries(parts);
  }
  // `all` has the number of the step and the gradient's scale and limit.
  void StepHere(store::Changing changing, const RowOptimizer& function,
                const SparseGradient& gradient, RowArrays all, const Helpers& helpers);
  void StepThere(store::Changing changing, const RowOptimizer& function, const RowArrays& all);

  const std::shared_ptr<store::Rows> rows_;  // shared with the entry
  const bool moves_without_gradient_;        // whether a step also moves rows without a gradient
  std::vector<StateBlock> blocks_;
  std::vector<std::byte*> state_;  // the blocks' data
  // The rows that had a gradient in some step, ascending. Needed for optimizers that also move such
  // rows in every later step; empty for others.
  std::vector<int64_t> touched_;
  std::optional<Begun> begun_;
};

absl::Status SteppedRows::Init(const RowOptimizer& function, MemoryAccount& memory) {
  const auto rows = static_cast<size_t>(rows_->NumRows());
  Allocator& place = rows_->memory() == nullptr ? memory : *rows_->memory();
  for (const RowSlot& slot : function.Slots(rows_->dtype())) {
    PSD_ASSIGN_OR_RETURN(
        std::vector<StateBlock> blocks,
        AllocateState({slot.slot}, slot.one_per_row ? rows : rows * rows_->width(), place));
    state_.push_back(blocks[0].block->data());
    blocks_.push_back(std::move(blocks[0]));
  }
  return absl::OkStatus();
}

// Recomputes touched_: a row whose state is not all zero had a gradient in some step.
absl::Status SteppedRows::StateReplaced() {
  if (!moves_without_gradient_) return absl::OkStatus();
  const auto rows = static_cast<size_t>(rows_->NumRows());
  std::vector<Tensor> arrays;  // readable by the host
  for (const StateBlock& each : blocks_) {
    const Shape shape{static_cast<int64_t>(each.block->size() / ItemSize(each.slot.dtype))};
    PSD_ASSIGN_OR_RETURN(const Tensor array,
                         Tensor::FromBuffer(shape, each.slot.dtype, Buffer(each.block)));
    PSD_ASSIGN_OR_RETURN(arrays.emplace_back(), array.ToHost());
  }
  touched_.clear();
  for (size_t row = 0; row < rows; ++row) {
    for (const Tensor& each : arrays) {
      const size_t bytes = each.NumBytes() / rows;
      const std::byte* begin = each.raw_data() + row * bytes;
      if (std::all_of(begin, begin + bytes, [](std::byte b) { return b == std::byte{0}; }))
        continue;
      touched_.push_back(static_cast<int64_t>(row));
      break;
    }
  }
  return absl::OkStatus();
}

absl::Status SteppedRows::Prepare(ParameterGradient& gradient) const {
  if (gradient.gradient->defined() || gradient.sparse.empty()) {
    return WithRemedy(absl::InvalidArgumentError(absl::StrCat(
                          "the gradient for ", entry()->Label(), ", ", rows_->TypeName(),
                          ", must be a sparse one, not ", gradient.gradient->ToString())),
                      "look its rows up");
  }
  for (const SparseTensor& part : gradient.sparse) {
    if (part.shape() == rows_->shape() && part.dtype() == rows_->dtype()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("the gradient for ", entry()->Label(), ", ", rows_->TypeName(),
                     ", has another shape or dtype: it is ", part.ToString()));
  }
  PSD_ASSIGN_OR_RETURN(gradient.rows, Join(gradient.sparse));
  gradient.sparse = {gradient.rows->entries};
  return absl::OkStatus();
}

absl::StatusOr<ParameterGradient> SteppedRows::Sum(const ParameterGradient& a,
                                                   const ParameterGradient& b) const {
  ParameterGradient sum;
  sum.parameter = a.parameter;
  sum.version = a.version;
  sum.version.Add(b.version);
  PSD_ASSIGN_OR_RETURN(sum.rows, Join({a.rows->entries, b.rows->entries}));
  sum.sparse = {sum.rows->entries};
  return sum;
}

absl::StatusOr<bool> SteppedRows::BeginStep(store::Changing, const ParameterGradient& gradient,
                                            kernels::OptimArrays& /*arrays*/, StepMemory& memory) {
  if (device() == nullptr) return false;
  const SparseGradient& given = *gradient.rows;
  const auto send = [&](const kernels::RowGroups* groups) {
    return DeviceGradient::Send(*device(), given.entries, groups,
                                static_cast<size_t>(rows_->NumRows()), memory);
  };
  Begun begun;
  if (moves_without_gradient_) {
    kernels::RowGroups groups = WithIds(*given.groups, touched_);
    PSD_ASSIGN_OR_RETURN(begun.gradient, send(&groups));
    begun.touched = std::move(groups.ids);
  } else {
    PSD_ASSIGN_OR_RETURN(begun.gradient, send(nullptr));
  }
  begun_ = std::move(begun);
  return false;
}

void SteppedRows::ApplyRows(store::Changing changing, const RowOptimizer& function,
                            const ParameterGradient& gradient, RowArrays all,
                            const Helpers& helpers) {
  all.step = NextStep();
  if (device() == nullptr) {
    StepHere(changing, function, *gradient.rows, all, helpers);
  } else {
    StepThere(changing, function, all);
  }
  rows_->FinishUpdate(changing);
}

void SteppedRows::StepHere(store::Changing changing, const RowOptimizer& function,
                           const SparseGradient& gradient, RowArrays all, const Helpers& helpers) {
  all.width = rows_->width();
  all.gradients = gradient.entries.values().raw_data();
  all.dtype = rows_->dtype();
  all.table = rows_->elements();
  all.state = absl::MakeConstSpan(state_);
  const auto publish = [&](absl::Span<const int64_t> ids, const std::byte* next) {
    const absl::Status written = rows_->Write(changing, ids, next);
    PSD_CHECK(written.ok(), written.message());
  };
  if (moves_without_gradient_) {
    kernels::RowGroups groups = WithIds(*gradient.groups, touched_);
    StepRows(function, groups, all, helpers, publish);
    touched_ = std::move(groups.ids);
  } else {
    StepRows(function, *gradient.groups, all, helpers, publish);
  }
}

// The memory of the gradient is freed in the order of the stream.
void SteppedRows::StepThere(store::Changing changing, const RowOptimizer& function,
                            const RowArrays& all) {
  Begun begun = *std::exchange(begun_, std::nullopt);
  Stream& stream = *CurrentStream(device());
  kernels::DeviceRowBatch batch;
  batch.type = OptimTypeOf(dtype());
  batch.table = rows_->AddressThere(changing);
  batch.rows = static_cast<size_t>(rows_->NumRows());
  batch.width = rows_->width();
  batch.groups = begun.gradient.Group(stream);
  batch.gradients = begun.gradient.values();
  std::copy(state_.begin(), state_.end(), batch.state);
  batch.gradient_scale = all.gradient_scale;
  batch.gradient_limit = all.gradient_limit;
  function.ApplyThere(stream, all.step, batch);
  touched_ = std::move(begun.touched);
}

}  // namespace

absl::Status CheckSteppedRows(const store::Entry& entry, const FunctionalOptimizer& function) {
  const std::shared_ptr<store::Rows> rows = store::AsRows(entry.value);
  PSD_CHECK(rows != nullptr, "an entry of rows");
  if (!rows->requires_grad()) {
    return WithRemedy(absl::InvalidArgumentError(absl::StrCat("it is a ", rows->TypeName(),
                                                              " that does not require grad")),
                      "create it with requires_grad");
  }
  if (function.rows() == nullptr) {
    return WithRemedy(absl::InvalidArgumentError(absl::StrCat(
                          "it is a ", rows->TypeName(), ", whose gradients are sparse, and ",
                          function.spec().type, " takes dense ones only")),
                      "use sgd, adagrad, rowwise_adagrad or sparse_adam");
  }
  if (rows->device() != nullptr) PSD_RETURN_IF_ERROR(function.rows()->CheckDevice(*rows->device()));
  return function.rows()->CheckOptions();
}

absl::StatusOr<std::unique_ptr<SteppedParameter>> NewSteppedRows(
    store::EntryPtr entry, size_t group, const FunctionalOptimizer& function,
    MemoryAccount& memory) {
  std::shared_ptr<store::Rows> rows = store::AsRows(entry->value);
  auto parameter =
      std::make_unique<SteppedRows>(std::move(entry), group, std::move(rows), *function.rows());
  PSD_RETURN_IF_ERROR(parameter->Init(*function.rows(), memory));
  return std::unique_ptr<SteppedParameter>(std::move(parameter));
}

}  // namespace psd::optim
