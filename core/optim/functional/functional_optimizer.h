#pragma once

// Functional optimizers: (parameter, gradient, state, options) -> (parameter', state').

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "core/optim/functional/optimizer_spec.h"
#include "core/tensor/dtype.h"
#include "kernels/optim/arrays.h"

namespace psd {
class Device;
class Stream;
}  // namespace psd

namespace psd::optim {

// One array of the optimizer's state for each parameter, of the parameter's shape.
struct StateSlot {
  std::string name;  // PyTorch's name: "exp_avg", "momentum_buffer"
  DType dtype = DType::kF32;
  double initial = 0;
};

// Returns the kernels' enumerator for `dtype`. Requires: an optimizer can step the dtype.
kernels::OptimType OptimTypeOf(DType dtype);

class RowOptimizer;  // core/optim/functional/row_optimizer.h

// A pure function with fixed options. Thread-safe. It knows no tensors, names or versions.
class FunctionalOptimizer {
 public:
  virtual ~FunctionalOptimizer() = default;

  // Returns the spec with all options, including those that have their defaults.
  virtual const OptimizerSpec& spec() const = 0;
  // Returns the slots of the state for a parameter of `dtype`: f32 for f32, bf16 and f16, f64 for
  // f64. There are at most kernels::kMaxOptimStates.
  virtual std::vector<StateSlot> Slots(DType dtype) const = 0;
  // Errors: INVALID_ARGUMENT for a dtype that the optimizer cannot step.
  virtual absl::Status CheckDType(DType dtype) const = 0;
  // Errors: UNIMPLEMENTED, naming the type and the device, for a device (null for the CPU) that
  // cannot step. Unless a type overrides this, it works on the CPU only.
  virtual absl::Status CheckDevice(const Device* device) const;
  // Takes one step of all arrays of `batch`, as work of `stream`; null means the CPU and the
  // calling thread. The addresses are in the memory of the stream's device. An array may be a part
  // of a parameter. The other parts of the parameter may be in other batches, which other threads
  // step at the same time; the result does not depend on the division. `stochastic_rounding` is not
  // set in `batch`: it is an option. Cannot fail, because everything was checked before. A device
  // may still be at work when this returns; an event of the stream tells when it is done, and
  // reports its failure.
  virtual void Apply(Stream* stream, const kernels::OptimBatch& batch) const = 0;
  // Returns the part that steps rows and takes sparse gradients; null if there is none.
  virtual const RowOptimizer* rows() const { return nullptr; }
};

}  // namespace psd::optim
