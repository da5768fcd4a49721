#pragma once

// Helpers of the operators in this folder: checks of their arguments, and dispatch by dtype.

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/tensor/tensor.h"

namespace psd::ops {

// Whether arithmetic operators take the dtype: f32 and f64, and with `integers` also i32 and i64.
inline bool IsArithmetic(DType dtype, bool integers) {
  return dtype == DType::kF32 || dtype == DType::kF64 ||
         (integers && (dtype == DType::kI32 || dtype == DType::kI64));
}

// The slow paths of the checks below: each returns the error, or OK if the arguments are fine.
absl::Status UsableError(absl::string_view op, const Tensor& x);
absl::Status ArithmeticError(absl::string_view op, const Tensor& x, bool integers);
absl::Status PairError(absl::string_view op, const Tensor& a, const Tensor& b, bool integers);

// Errors: INVALID_ARGUMENT for an undefined tensor, UNIMPLEMENTED for one that is not on a CPU.
inline absl::Status CheckUsable(absl::string_view op, const Tensor& x) {
  return x.defined() && x.device().IsCpu() ? absl::OkStatus() : UsableError(op, x);
}

// Checks that the tensor is usable and has a dtype that IsArithmetic.
// Errors: those of CheckUsable; INVALID_ARGUMENT naming the tensor and the remedy.
inline absl::Status CheckArithmetic(absl::string_view op, const Tensor& x, bool integers) {
  const bool good = x.defined() && x.device().IsCpu() && IsArithmetic(x.dtype(), integers);
  return good ? absl::OkStatus() : ArithmeticError(op, x, integers);
}

inline bool IsGoodPair(const Tensor& a, const Tensor& b, bool integers) {
  return a.defined() && b.defined() && a.device().IsCpu() && b.device().IsCpu() &&
         a.dtype() == b.dtype() && IsArithmetic(a.dtype(), integers);
}

// Checks both with CheckArithmetic, and that they have the same dtype.
// Errors: those of CheckArithmetic; INVALID_ARGUMENT naming both tensors.
inline absl::Status CheckPair(absl::string_view op, const Tensor& a, const Tensor& b,
                              bool integers) {
  return IsGoodPair(a, b, integers) ? absl::OkStatus() : PairError(op, a, b, integers);
}

// Returns `axis`, which counts from the end if negative, as a number in [0, x.rank()).
// Errors: INVALID_ARGUMENT if there is no such axis.
absl::StatusOr<int> CheckAxis(absl::string_view op, const Tensor& x, int64_t axis);

// Both call `f` with a zero of the C++ type of `dtype` and return its result. Requires: `dtype` is
// f32 or f64 for WithFloat, and one of these or i32 or i64 for WithNumber.
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
