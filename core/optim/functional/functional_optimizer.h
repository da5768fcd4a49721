#pragma once

// Functional optimizers: (parameter, gradient, state, options) -> (parameter', state').

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/tensor/dtype.h"

namespace psd::optim {

// The shortest text that reads back as the same number.
std::string ShortestText(double value);

// An optimizer as data: what travels, and what creators of one named optimizer must agree on.
struct OptimizerSpec {
  std::string type;  // "sgd", "adam", … (core/optim/options/optimizer_registry.h)
  // By PyTorch's names, but "beta1" and "beta2" for betas; true and false are 1 and 0.
  std::map<std::string, double> options;

  friend bool operator==(const OptimizerSpec& a, const OptimizerSpec& b) {
    return a.type == b.type && a.options == b.options;
  }
  // "adam(beta1=0.9, beta2=0.999, lr=0.001)": sorted; specs print equal if and only if they are.
  std::string ToString() const;
};

// One array of the optimizer's state for each parameter, of the parameter's shape.
struct StateSlot {
  std::string name;  // PyTorch's: "exp_avg", "momentum_buffer"
  DType dtype = DType::kF32;
  double initial = 0;
};

// One parameter's part in a step, or a part of that. All arrays are contiguous, of `elements`
// elements, aligned to kBlockAlignment but for `gradient`, and do not overlap.
struct StepArrays {
  const std::byte* parameter = nullptr;  // the version that is read
  std::byte* next = nullptr;             // the version that is written; may equal `parameter`
  const std::byte* gradient = nullptr;   // never modified
  absl::Span<std::byte* const> state;    // one per slot, updated in place
  int64_t elements = 0;
  DType dtype = DType::kF32;  // of parameter and gradient
  // The number of this step for this parameter: 1, 2, … It counts only steps with a gradient.
  int64_t step = 1;
  // Every gradient element counts as g * gradient_scale (loss scaling, clipping by norm), then
  // clamped to +-gradient_limit (clipping by value; a NaN stays one), before anything else is done
  // with it. 1 and infinity cost nothing. Requires: gradient_limit >= 0.
  double gradient_scale = 1;
  double gradient_limit = std::numeric_limits<double>::infinity();
  // For stochastic rounding, whose random bits depend on this, `step` and the element only: another
  // for each parameter of an optimizer, the same in every step.
  uint64_t rounding_seed = 0;
  // Where in its parameter a part starts: a multiple of kPartElements.
  int64_t first_element = 0;
};

class RowOptimizer;  // core/optim/functional/row_optimizer.h

// A parameter may be stepped in parts, on several threads, that start at multiples of this; the
// result is the same.
inline constexpr int64_t kPartElements = 1024;

// A pure function with fixed options. Thread-safe; knows no tensors, names or versions.
class FunctionalOptimizer {
 public:
  virtual ~FunctionalOptimizer() = default;

  // With every option, defaults included.
  virtual const OptimizerSpec& spec() const = 0;
  // The state for a parameter of `dtype`: f32 for f32, bf16 and f16, f64 for f64.
  virtual std::vector<StateSlot> Slots(DType dtype) const = 0;
  // Errors: INVALID_ARGUMENT for a dtype that it cannot step.
  virtual absl::Status CheckDType(DType dtype) const = 0;
  // Cannot fail: everything was checked before.
  virtual void Apply(const StepArrays& arrays) const = 0;
  // How it steps rows, and by sparse gradients; null: it does not.
  virtual const RowOptimizer* rows() const { return nullptr; }
  // The same for many, which do not overlap. The built-in types sweep through them as through one:
  // give all of a step at once, those of equal dtype and step number next to each other.
  virtual void ApplyAll(absl::Span<const StepArrays> all) const {
    for (const StepArrays& arrays : all) Apply(arrays);
  }
};

}  // namespace psd::optim
