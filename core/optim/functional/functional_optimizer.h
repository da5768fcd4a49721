#pragma once

// Functional optimizers: (parameter, gradient, state, options) -> (parameter', state').

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "core/optim/functional/optimizer_spec.h"
#include "core/tensor/dtype.h"

namespace psd {
class Device;
}  // namespace psd

namespace psd::optim {

// One array of the optimizer's state for each parameter, of the parameter's shape.
struct StateSlot {
  std::string name;  // PyTorch's name: "exp_avg", "momentum_buffer"
  DType dtype = DType::kF32;
  double initial = 0;
};

// The arrays of one parameter in a step, or of a part of the parameter. All arrays are contiguous,
// have `elements` elements and do not overlap. All except `gradient` are aligned to
// kBlockAlignment.
struct StepArrays {
  const std::byte* parameter = nullptr;  // the version that is read
  std::byte* next = nullptr;             // the version that is written; may equal `parameter`
  const std::byte* gradient = nullptr;   // never modified
  absl::Span<std::byte* const> state;    // one per slot, updated in place
  Device* device = nullptr;  // the device that all addresses belong to; null for the CPU
  int64_t elements = 0;
  DType dtype = DType::kF32;  // of parameter and gradient
  // The number of this step for this parameter: 1, 2, … Only steps with a gradient are counted.
  int64_t step = 1;
  // Every gradient element g is multiplied by gradient_scale (loss scaling, clipping by norm) and
  // then clamped to +-gradient_limit (clipping by value; a NaN stays a NaN), before it is used. 1
  // and infinity cost nothing. Requires: gradient_limit >= 0.
  double gradient_scale = 1;
  double gradient_limit = std::numeric_limits<double>::infinity();
  // The seed for stochastic rounding, whose random bits depend only on this seed, on `step` and on
  // the element. The parameters of an optimizer have different seeds, and each keeps its seed in
  // all steps.
  uint64_t rounding_seed = 0;
  // The index in the parameter at which this part starts: a multiple of kPartElements.
  int64_t first_element = 0;
};

class RowOptimizer;  // core/optim/functional/row_optimizer.h

// A parameter may be stepped in parts, on several threads. The parts start at multiples of this.
// The result does not depend on the division.
inline constexpr int64_t kPartElements = 1024;

// A pure function with fixed options. Thread-safe. It knows no tensors, names or versions.
class FunctionalOptimizer {
 public:
  virtual ~FunctionalOptimizer() = default;

  // Returns the spec with all options, including those that have their defaults.
  virtual const OptimizerSpec& spec() const = 0;
  // Returns the slots of the state for a parameter of `dtype`: f32 for f32, bf16 and f16, f64 for
  // f64.
  virtual std::vector<StateSlot> Slots(DType dtype) const = 0;
  // Errors: INVALID_ARGUMENT for a dtype that the optimizer cannot step.
  virtual absl::Status CheckDType(DType dtype) const = 0;
  // Errors: UNIMPLEMENTED, naming the type and the device, for a device (null for the CPU) that
  // cannot step. Unless a type overrides this, it works on the CPU only.
  virtual absl::Status CheckDevice(const Device* device) const;
  // Takes one step. Cannot fail, because everything was checked before. A device may still be at
  // work when this returns; Device::Synchronize waits for it and reports its failure.
  virtual void Apply(const StepArrays& arrays) const = 0;
  // Returns the part that steps rows and takes sparse gradients; null if there is none.
  virtual const RowOptimizer* rows() const { return nullptr; }
  // Takes one step of many parameters that do not overlap. The built-in types process them in one
  // pass. For this, all arrays of a step should be passed at once, with those of equal dtype and
  // step number next to each other.
  virtual void ApplyAll(absl::Span<const StepArrays> all) const {
    for (const StepArrays& arrays : all) Apply(arrays);
  }
};

}  // namespace psd::optim
