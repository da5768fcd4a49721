#pragma once

// What all optimizer kernels take: where parameters, gradients and state are.

#include <cstddef>
#include <cstdint>
#include <limits>

namespace psd::kernels {

// Element types of parameters, with that of their state: f64 for f64, f32 for all others.
enum class OptimType : uint8_t { kF32, kF64, kF16, kBF16 };

// State arrays that an optimizer may have, at most.
inline constexpr size_t kMaxOptimStates = 3;

// In bytes: a cache line and the widest vector register.
inline constexpr size_t kOptimAlignment = 64;

// A parameter may be stepped in parts whose first elements are multiples of this.
inline constexpr size_t kOptimPartElements = 1024;

// One parameter's part in a step, or a part of one. `parameter`, `next` and the state arrays start
// at a multiple of kOptimAlignment; `gradient` anywhere its type may. `next` may equal `parameter`
// (in place); otherwise no two arrays overlap. No array is touched beyond its `size` elements.
struct OptimArrays {
  const void* parameter = nullptr;  // the version that is read
  void* next = nullptr;             // the version that is written
  const void* gradient = nullptr;   // of the parameter's type; never modified
  void* state[kMaxOptimStates] = {};
  size_t size = 0;             // elements
  uint64_t first_element = 0;  // of the parameter: where this part of it starts
  uint64_t rounding_seed = 0;  // for stochastic rounding; another for each parameter
};

// Parameters of one type that take a step of the same number together: what depends on the options
// and the number only is computed once.
struct OptimBatch {
  OptimType type = OptimType::kF32;
  int64_t step = 1;  // 1, 2, …: counts from 1
  const OptimArrays* arrays = nullptr;
  size_t count = 0;
  // Every gradient element counts as g * gradient_scale, then clamped to +-gradient_limit (a NaN
  // stays one), before anything else is done with it. The limit is at least 0.
  double gradient_scale = 1;
  double gradient_limit = std::numeric_limits<double>::infinity();
  // For bf16: the new parameter is rounded up or down at random, so that it is right on average,
  // instead of to the nearest. The random bits depend on rounding_seed, the step's number and the
  // element only.
  bool stochastic_rounding = false;
};

// Whether a step that touches `bytes` in all should write its new version past the caches: when
// it does not fit into a core's own cache anyway, so that the write need not read the old lines.
bool WritesPastCache(size_t bytes);

}  // namespace psd::kernels
