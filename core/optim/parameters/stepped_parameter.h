#pragma once

// One parameter as one optimizer steps it: what it may be given, its state, its kernel.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/autograd/read_version.h"
#include "core/base/ids.h"
#include "core/base/memory_budget.h"
#include "core/optim/functional/functional_optimizer.h"
#include "core/optim/parameters/kept_tensor.h"
#include "core/optim/rows/sparse_gradient.h"
#include "core/store/parameter.h"
#include "core/store/store.h"
#include "core/tensor/dtype.h"
#include "core/tensor/sparse_tensor.h"
#include "core/tensor/tensor.h"

namespace psd::optim {

// A gradient for one parameter: dense, or if that is undefined the sum of sparse parts.
struct ParameterGradient {
  GlobalId parameter;
  KeptTensor gradient;
  ReadVersion version = {};  // of the parameter, that it was computed from
  std::vector<SparseTensor> sparse = {};
  // Once prepared: it was sparse, or a part of it was, even if it is dense now.
  bool from_sparse = false;
  // Once prepared: the parts as one, unless they were made dense. Shared by copies of this
  // gradient.
  std::shared_ptr<const SparseGradient> rows = nullptr;
};

// One array of a parameter's optimizer state, in place. Whoever reads or writes it holds the
// parameter's write claim, which every step of it holds too.
struct StateArray {
  std::string name;  // its slot's
  DType dtype = DType::kF32;
  std::byte* data = nullptr;
  size_t bytes = 0;
};

// A parameter with its state. Confined: but for what is constant, to whoever holds the write claim
// of the optimizer and of the parameter.
class SteppedParameter {
 public:
  SteppedParameter(store::EntryPtr entry, size_t group) : entry_(std::move(entry)), group_(group) {}
  virtual ~SteppedParameter() = default;
  SteppedParameter(const SteppedParameter&) = delete;
  SteppedParameter& operator=(const SteppedParameter&) = delete;

  const store::EntryPtr& entry() const { return entry_; }
  GlobalId id() const { return entry_->id; }
  size_t group() const { return group_; }
  virtual DType dtype() const = 0;

  // The versions that a step of it moves on, or null for what is updated in place.
  virtual store::Parameter* versions() const = 0;
  // The current version's number.
  virtual uint64_t version() const = 0;

  // Whether it can be stepped with these options instead of those that it was made for.
  // Errors: INVALID_ARGUMENT naming the option.
  virtual absl::Status CheckOptions(const FunctionalOptimizer& function) const = 0;
  // Checks a gradient and brings it into the form that Apply takes. Constant, so without a claim.
  // Errors: INVALID_ARGUMENT naming expected and given; RESOURCE_EXHAUSTED when one with strides
  // cannot be made dense.
  virtual absl::Status Prepare(ParameterGradient& gradient) const = 0;
  // What both (prepared) gradients add up to; neither is modified. For the
  // version see ReadVersion.
  // Errors: RESOURCE_EXHAUSTED.
  virtual absl::StatusOr<ParameterGradient> Sum(const ParameterGradient& a,
                                                const ParameterGradient& b) const = 0;
  // Of all elements of a prepared gradient; not finite if one of them is not.
  virtual double SumOfSquares(const ParameterGradient& gradient) const = 0;

  // One step. `arrays` holds what the whole step has in common (scale and limit of the gradient)
  // and, for a parameter with versions, the version read and the one written. Cannot fail.
  virtual void Apply(const FunctionalOptimizer& function, const ParameterGradient& gradient,
                     StepArrays arrays) = 0;
  // The same, but left to the caller: makes `arrays` what it applies, with those of others, by one
  // FunctionalOptimizer::ApplyAll. False, and nothing done, if it must be applied by itself.
  virtual bool BeginStep(const ParameterGradient& /*gradient*/, StepArrays& /*arrays*/) {
    return false;
  }

  // Steps so far with a gradient.
  int64_t steps() const { return steps_; }
  void set_steps(int64_t steps) { steps_ = steps; }

  virtual std::vector<StateArray> state() const = 0;
  // Somebody has written into the arrays of state().
  virtual void StateReplaced() {}

 protected:
  int64_t NextStep() { return ++steps_; }

 private:
  const store::EntryPtr entry_;
  const size_t group_;  // of its optimizer
  int64_t steps_ = 0;
};

// Errors: INVALID_ARGUMENT: no parameter that requires grad, or a dtype that `function` cannot
// step.
absl::Status CheckDenseParameter(const store::Entry& entry, const FunctionalOptimizer& function);
// A dense parameter: reserves its spare and its state, charged to `memory`, for as long as it
// lives. Requires: CheckDenseParameter is OK. Errors: RESOURCE_EXHAUSTED.
absl::StatusOr<std::unique_ptr<SteppedParameter>> NewDenseParameter(
    store::EntryPtr entry, size_t group, const FunctionalOptimizer& function,
    MemoryAccount& memory);

// The state of `elements` elements for `slots`, at its initial values, charged to `memory`.
struct StateBlock {
  StateSlot slot;
  std::shared_ptr<Block> block;  // shared with nobody; how the budget hands memory out
};
absl::StatusOr<std::vector<StateBlock>> AllocateState(const std::vector<StateSlot>& slots,
                                                      size_t elements, MemoryAccount& memory);
std::vector<StateArray> StateArrays(const std::vector<StateBlock>& blocks);

}  // namespace psd::optim
