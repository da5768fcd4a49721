#pragma once

// Calls generic code with the C++ type of a dtype.

#include <cstdint>

#include "core/tensor/dtype.h"

namespace psd::ops {

// Both call `f` with a zero of the C++ type of `dtype` and return its result. Requires: for
// WithFloat, `dtype` is f32 or f64; for WithNumber, it may also be i32 or i64.
template <typename F>
auto WithFloat(DType dtype, F&& f) {
  return dtype == DType::kF64 ? f(double{}) : f(float{});
}
template <typename F>
auto WithNumber(DType dtype, F&& f) {
  if (dtype == DType::kI64) return f(int64_t{});
  if (dtype == DType::kI32) return f(int32_t{});
  return WithFloat(dtype, f);
}

}  // namespace psd::ops
