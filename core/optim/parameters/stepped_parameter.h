#pragma once

// A parameter together with the state that one optimizer keeps for it: checks gradients for it and
// applies steps to it.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/autograd/read_version.h"
#include "core/base/buffer.h"
#include "core/base/device.h"
#include "core/base/ids.h"
#include "core/base/memory_budget.h"
#include "core/base/parallel_for.h"
#include "core/base/small_object.h"
#include "core/optim/functional/functional_optimizer.h"
#include "core/optim/functional/row_optimizer.h"
#include "core/optim/parameters/kept_tensor.h"
#include "core/optim/parameters/step_memory.h"
#include "core/optim/rows/sparse_gradient.h"
#include "core/store/changing.h"
#include "core/store/parameter.h"
#include "core/store/store.h"
#include "core/tensor/dtype.h"
#include "core/tensor/sparse_tensor.h"
#include "core/tensor/tensor.h"
#include "kernels/optim/arrays.h"

namespace psd::optim {

// A gradient for one parameter: `gradient` if it is defined, otherwise the sum of the parts in
// `sparse`. SteppedParameter::Prepare sets the fields at the end.
struct ParameterGradient {
  GlobalId parameter;
  KeptTensor gradient;
  ReadVersion version = {};  // the version of the parameter that it was computed from
  std::vector<SparseTensor> sparse = {};
  // Set if `gradient` is a sum in f32 of gradients of this dtype, f16 or bf16.
  std::optional<DType> rounds_to = std::nullopt;
  // Set by Prepare: whether the gradient was entirely or partly sparse. It may have been made
  // dense.
  bool from_sparse = false;
  // Set by Prepare: the sum of the sparse parts, or null if the gradient is dense by now. Shared by
  // copies of this gradient.
  std::shared_ptr<const SparseGradient> rows = nullptr;
};

// Points to one array of a parameter's optimizer state, in the memory of `device`. Reading or
// writing the array requires the parameter's write claim, held alone; every step of the parameter
// holds it too.
struct StateArray {
  std::string name;  // the name of its slot
  DType dtype = DType::kF32;
  std::byte* data = nullptr;
  size_t bytes = 0;
  Device* device = nullptr;  // null for the host
};

// A parameter with its state. BeginStep, ApplyRows, AbandonStep, StateReplaced, steps and set_steps
// require the write claims of the optimizer and of the parameter, and that the holder has not
// handed them on. All other functions are thread-safe.
class SteppedParameter : public SmallObject {
 public:
  // `device` is the parameter's; null for the host.
  SteppedParameter(store::EntryPtr entry, size_t group, DType dtype, Device* device)
      : entry_(std::move(entry)), group_(group), device_(device), dtype_(dtype) {}
  virtual ~SteppedParameter() = default;
  SteppedParameter(const SteppedParameter&) = delete;
  SteppedParameter& operator=(const SteppedParameter&) = delete;

  const store::EntryPtr& entry() const { return entry_; }
  GlobalId id() const { return entry_->id; }
  size_t group() const { return group_; }
  DType dtype() const { return dtype_; }
  // The device that holds it; null for the host.
  Device* device() const { return device_; }

  // The versioned parameter, of which a step writes a new version. Null for rows, which are updated
  // in place.
  virtual store::Parameter* versions() const = 0;
  // The number of the current version.
  virtual uint64_t version() const = 0;

  // Checks that `function`, which has other options than the function with which this object was
  // created, can step it. Errors: INVALID_ARGUMENT naming the option.
  virtual absl::Status CheckOptions(const FunctionalOptimizer& function) const = 0;
  // Checks a gradient and brings it into the form that BeginStep takes, or that Round takes if it
  // is a sum that is not rounded yet. A prepared gradient is on the parameter's device, if it was
  // given there, or on the host. Needs no claim. Errors: INVALID_ARGUMENT naming the expected and
  // the given shape and dtype; RESOURCE_EXHAUSTED when there is no memory to bring a gradient to
  // the host, to make a strided one contiguous or a sparse one dense; those of the gradient's
  // device.
  virtual absl::Status Prepare(ParameterGradient& gradient) const = 0;
  // Returns the sum of two prepared gradients, or of a sum and a gradient, and modifies neither.
  // See ReadVersion for the version of a sum. A sum of f16 or bf16 gradients is kept in f32 until
  // Round. The sum is on the device if one of them is and it has room. Errors: RESOURCE_EXHAUSTED;
  // those of the device.
  virtual absl::StatusOr<ParameterGradient> Sum(const ParameterGradient& a,
                                                const ParameterGradient& b) const = 0;
  // Brings a sum into the form of a prepared gradient. Must be called once, before BeginStep.
  // Changes nothing else. Errors: RESOURCE_EXHAUSTED; those of the device.
  virtual absl::Status Round(ParameterGradient& /*sum*/) const { return absl::OkStatus(); }
  // Returns how many elements a step with a prepared gradient reads or writes, which may be far
  // more than the gradient has. Requires the same claims as BeginStep.
  virtual int64_t StepElements(const ParameterGradient& gradient) const = 0;

  // Begins one step with a prepared gradient. For a parameter with versions, the caller has set in
  // `arrays` the version to read, the version to write and the rounding seed. If the caller is to
  // run the kernel, this puts the gradient where the parameter lives, completes `arrays`, counts
  // the step and returns true; the caller then passes `arrays`, with those of other parameters, to
  // FunctionalOptimizer::Apply. If this returns false, the caller calls ApplyRows. All that the
  // step allocates is allocated here, and nothing that a reader can see is written. Adds to
  // `memory` what must live until the device has done the work. Errors: RESOURCE_EXHAUSTED and
  // those of the device; on the host none.
  virtual absl::StatusOr<bool> BeginStep(store::Changing, const ParameterGradient& gradient,
                                         kernels::OptimArrays& arrays, StepMemory& memory) = 0;
  // Counts and applies the step that BeginStep has begun and left to this function. The caller has
  // set in `rows` the gradient's scale and limit and, for a parameter with versions, the version to
  // read (`table`) and the version to write (`next`, here the whole version). The host divides many
  // rows among this thread and `helpers`. A device does this as work of the thread's CurrentStream,
  // and may still be at work when this returns.
  virtual void ApplyRows(store::Changing, const RowOptimizer& function,
                         const ParameterGradient& gradient, RowArrays rows,
                         const Helpers& helpers) = 0;
  // Ends a step that may have begun and was not applied. `steps` is the count from before it.
  virtual void AbandonStep(store::Changing changing, int64_t steps) { set_steps(changing, steps); }

  // The number of steps so far that had a gradient for this parameter.
  int64_t steps() const { return steps_; }
  void set_steps(store::Changing, int64_t steps) { steps_ = steps; }

  virtual std::vector<StateArray> state() const = 0;
  // Must be called after the arrays of state() were written from outside, as a load does. Errors:
  // those of the device; there are none on the host.
  virtual absl::Status StateReplaced() { return absl::OkStatus(); }

 protected:
  int64_t NextStep() { return ++steps_; }

 private:
  const store::EntryPtr entry_;
  const size_t group_;  // the number of its group in the optimizer
  Device* const device_;
  const DType dtype_;
  int64_t steps_ = 0;
};

// Errors: INVALID_ARGUMENT if the entry is not a parameter that requires grad, or has a dtype that
// `function` cannot step; UNIMPLEMENTED naming a device on which `function` does not work.
absl::Status CheckDenseParameter(const store::Entry& entry, const FunctionalOptimizer& function);
// Makes a dense parameter steppable. Reserves its spare, its state and, on a device, room for a
// gradient, from the parameter's allocator, for as long as the result lives. Requires:
// CheckDenseParameter is OK. Errors: RESOURCE_EXHAUSTED.
absl::StatusOr<std::unique_ptr<SteppedParameter>> NewDenseParameter(
    store::EntryPtr entry, size_t group, const FunctionalOptimizer& function);

// The memory of one array of state.
struct StateBlock {
  StateSlot slot;
  std::shared_ptr<Block> block;  // not shared; a shared_ptr because MemoryBudget returns one
};
// Allocates one array of `elements` elements for each slot, in `memory`, which may be on a device,
// and sets all elements to the slot's initial value.
// Errors: RESOURCE_EXHAUSTED; those of the device.
absl::StatusOr<std::vector<StateBlock>> AllocateState(const std::vector<StateSlot>& slots,
                                                      size_t elements, Allocator& memory);
std::vector<StateArray> StateArrays(const std::vector<StateBlock>& blocks);

}  // namespace psd::optim
