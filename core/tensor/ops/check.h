#pragma once

// What the operators of this folder share: checks of their arguments, and dispatch by dtype.

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/tensor/tensor.h"

namespace psd::ops {

// Errors: INVALID_ARGUMENT for an undefined tensor, UNIMPLEMENTED for one that is not on a CPU.
absl::Status CheckUsable(absl::string_view op, const Tensor& x);

// CheckUsable, and the dtype is one to calculate with: f32, f64, and with `integers` i32, i64.
// Errors: INVALID_ARGUMENT naming the tensor and the remedy.
absl::Status CheckArithmetic(absl::string_view op, const Tensor& x, bool integers);

// CheckArithmetic of both, and that they have one dtype.
absl::Status CheckPair(absl::string_view op, const Tensor& a, const Tensor& b, bool integers);

// `axis`, counted from the end if negative, as a number in [0, x.rank()).
// Errors: INVALID_ARGUMENT.
absl::StatusOr<int> CheckAxis(absl::string_view op, const Tensor& x, int64_t axis);

// Calls `f` with a value of the C++ type of `dtype`. Requires: one of the types named.
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
