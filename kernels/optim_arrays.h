#pragma once

// What optimizer kernels have in common: where one parameter's numbers are.

#include <cstddef>
#include <limits>

namespace psd::kernels {

// One parameter's part in a step. `parameter`, `next` and the state arrays of an optimizer start
// at a multiple of kOptimAlignment; `gradient` anywhere its type may. `next` may equal `parameter`
// (in place); otherwise no two arrays overlap. No array is touched beyond its `size` elements.
template <typename T>
struct OptimArrays {
  const T* parameter = nullptr;  // the version that is read
  T* next = nullptr;             // the version that is written
  const T* gradient = nullptr;   // never modified
  size_t size = 0;               // elements
  // Every gradient element counts as g * gradient_scale, then clamped to +-gradient_limit (a NaN
  // stays one), before anything else is done with it. Requires: gradient_limit >= 0.
  double gradient_scale = 1;
  double gradient_limit = std::numeric_limits<double>::infinity();
};

// In bytes: a cache line and the widest vector register.
inline constexpr size_t kOptimAlignment = 64;

// Whether a step that touches `bytes` in all should write its new version past the caches: when
// it does not fit into a core's own cache anyway, so that the write need not read the old lines.
bool WritesPastCache(size_t bytes);

}  // namespace psd::kernels
