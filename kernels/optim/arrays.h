#pragma once

// The arguments of all optimizer kernels: pointers to parameters, gradients and state.

#include <cstddef>
#include <cstdint>
#include <limits>

namespace psd::kernels {

// The element type of a parameter. Its state is f64 for kF64 and f32 for all other types.
enum class OptimType : uint8_t { kF32, kF64, kF16, kBF16 };

// The most state arrays that an optimizer may have.
inline constexpr size_t kMaxOptimStates = 3;

// The alignment of arrays in bytes: the size of a cache line and of the widest vector register.
inline constexpr size_t kOptimAlignment = 64;

// A parameter may be stepped in parts whose first elements are multiples of this.
inline constexpr size_t kOptimPartElements = 1024;

// The arrays of one parameter in a step, or of a part of that parameter. `parameter`, `next` and
// the state arrays are aligned to kOptimAlignment; `gradient` only as its type requires. `next` may
// equal `parameter` (an update in place); otherwise no two arrays overlap. No array is accessed
// beyond its `size` elements.
struct OptimArrays {
  const void* parameter = nullptr;  // the version that is read
  void* next = nullptr;             // the version that is written
  const void* gradient = nullptr;   // has the parameter's type; never modified
  void* state[kMaxOptimStates] = {};
  size_t size = 0;             // elements
  uint64_t first_element = 0;  // the index in the parameter at which this part starts
  // For stochastic rounding: differs between the parameters of an optimizer, and stays the same in
  // all steps of a parameter.
  uint64_t rounding_seed = 0;
};

// Returns the part of `whole`, arrays of a parameter of `type`, that has `size` elements from
// element `first` of `whole` on. Requires: first is a multiple of kOptimPartElements.
inline OptimArrays PartOf(const OptimArrays& whole, OptimType type, size_t first, size_t size) {
  const bool narrow = type == OptimType::kF16 || type == OptimType::kBF16;
  const size_t state_bytes = first * (type == OptimType::kF64 ? sizeof(double) : sizeof(float));
  const size_t bytes = narrow ? first * sizeof(uint16_t) : state_bytes;
  OptimArrays part = whole;
  part.parameter = static_cast<const std::byte*>(whole.parameter) + bytes;
  part.next = static_cast<std::byte*>(whole.next) + bytes;
  part.gradient = static_cast<const std::byte*>(whole.gradient) + bytes;
  for (void*& state : part.state) {
    if (state != nullptr) state = static_cast<std::byte*>(state) + state_bytes;
  }
  part.size = size;
  part.first_element += first;
  return part;
}

// Parameters of one type that take a step with the same number together. Factors that depend only
// on the options and the step number are computed once for the whole batch.
struct OptimBatch {
  OptimType type = OptimType::kF32;
  int64_t step = 1;  // the number of the step, counted from 1
  const OptimArrays* arrays = nullptr;
  size_t count = 0;
  // Every gradient element g is multiplied by gradient_scale, then clamped to +-gradient_limit (a
  // NaN stays NaN), before anything else is done with it. Requires: gradient_limit >= 0.
  double gradient_scale = 1;
  double gradient_limit = std::numeric_limits<double>::infinity();
  // For bf16 only: the new parameter is rounded up or down at random, so that it is right on
  // average, instead of to nearest. The random bits depend only on rounding_seed, the number of the
  // step and the index of the element.
  bool stochastic_rounding = false;
};

// Returns whether a step that accesses `bytes` bytes in total should write its new version past the
// caches. It should if the arrays do not fit into a core's second-level cache: such a write need
// not read the old contents of the lines.
bool WritesPastCache(size_t bytes);

}  // namespace psd::kernels
