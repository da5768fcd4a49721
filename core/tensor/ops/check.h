#pragma once

// What the operators of this folder share: checks of their arguments, and dispatch by dtype.

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/tensor/tensor.h"

namespace psd::ops {

// Whether operators calculate with it: f32, f64, and with `integers` i32, i64.
inline bool IsArithmetic(DType dtype, bool integers) {
  return dtype == DType::kF32 || dtype == DType::kF64 ||
         (integers && (dtype == DType::kI32 || dtype == DType::kI64));
}

// Why a check below fails. Each is OK where nothing is wrong.
absl::Status UsableError(absl::string_view op, const Tensor& x);
absl::Status ArithmeticError(absl::string_view op, const Tensor& x, bool integers);
absl::Status PairError(absl::string_view op, const Tensor& a, const Tensor& b, bool integers);

// Errors: INVALID_ARGUMENT for an undefined tensor, UNIMPLEMENTED for one that is not on a CPU.
inline absl::Status CheckUsable(absl::string_view op, const Tensor& x) {
  return x.defined() && x.device().IsCpu() ? absl::OkStatus() : UsableError(op, x);
}

// CheckUsable, and IsArithmetic.
// Errors: INVALID_ARGUMENT naming the tensor and the remedy.
inline absl::Status CheckArithmetic(absl::string_view op, const Tensor& x, bool integers) {
  const bool good = x.defined() && x.device().IsCpu() && IsArithmetic(x.dtype(), integers);
  return good ? absl::OkStatus() : ArithmeticError(op, x, integers);
}

inline bool IsGoodPair(const Tensor& a, const Tensor& b, bool integers) {
  return a.defined() && b.defined() && a.device().IsCpu() && b.device().IsCpu() &&
         a.dtype() == b.dtype() && IsArithmetic(a.dtype(), integers);
}

// CheckArithmetic of both, and that they have one dtype.
inline absl::Status CheckPair(absl::string_view op, const Tensor& a, const Tensor& b,
                              bool integers) {
  return IsGoodPair(a, b, integers) ? absl::OkStatus() : PairError(op, a, b, integers);
}

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
