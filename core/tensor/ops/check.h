#pragma once

// Helpers of the operators in this folder: checks of their arguments, and the choice of a kernel.

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/base/device.h"
#include "core/base/status.h"
#include "core/base/stream.h"
#include "core/tensor/dtype.h"
#include "core/tensor/ops/kernels.h"
#include "core/tensor/tensor.h"

namespace psd::ops {

// Whether arithmetic operators take the dtype: f32 and f64, and with `integers` also i32 and i64.
inline bool IsArithmetic(DType dtype, bool integers) {
  return dtype == DType::kF32 || dtype == DType::kF64 ||
         (integers && (dtype == DType::kI32 || dtype == DType::kI64));
}

// The slow paths of the checks below. Each returns the error, or OK if the arguments are fine.
absl::Status DefinedError(absl::string_view op);
absl::Status NumbersError(absl::string_view op, const Tensor& x, bool integers);
absl::Status PairError(absl::string_view op, const Tensor& a, const Tensor& b, bool integers);

// Errors: INVALID_ARGUMENT for an undefined tensor.
inline absl::Status CheckDefined(absl::string_view op, const Tensor& x) {
  return x.defined() ? absl::OkStatus() : DefinedError(op);
}

// Checks that the tensor is defined and has a dtype that IsArithmetic.
// Errors: INVALID_ARGUMENT naming the tensor and the remedy.
inline absl::Status CheckNumbers(absl::string_view op, const Tensor& x, bool integers) {
  const bool good = x.defined() && IsArithmetic(x.dtype(), integers);
  return good ? absl::OkStatus() : NumbersError(op, x, integers);
}

// Whether both are on the same device.
inline bool AreTogether(const Tensor& a, const Tensor& b) {
  return (a.OnHost() && b.OnHost()) || a.device() == b.device();
}

inline bool IsGoodPair(const Tensor& a, const Tensor& b, bool integers) {
  return a.defined() && b.defined() && AreTogether(a, b) && a.dtype() == b.dtype() &&
         IsArithmetic(a.dtype(), integers);
}

// Checks both with CheckNumbers, and checks that they have the same dtype and are on the same
// device. Errors: INVALID_ARGUMENT naming both tensors or both devices.
inline absl::Status CheckNumbersPair(absl::string_view op, const Tensor& a, const Tensor& b,
                                     bool integers) {
  return IsGoodPair(a, b, integers) ? absl::OkStatus() : PairError(op, a, b, integers);
}

// Returns the kernel `name` of the device of `x`. Errors: UNIMPLEMENTED naming both.
template <typename Signature>
absl::StatusOr<Signature*> KernelFor(const KernelName<Signature>& name, const Tensor& x) {
  if (x.OnHost()) return CpuKernels().Find(name);
  return KernelOf(name, *x.device());
}

// Returns the stream for a kernel of KernelFor(..., x); null if `x` is on the host.
inline Stream* StreamFor(const Tensor& x) {
  return CurrentStream(x.device());
}

// Returns `axis`, which counts from the end if negative, as a number in [0, x.rank()).
// Errors: INVALID_ARGUMENT if there is no such axis.
absl::StatusOr<int> CheckAxis(absl::string_view op, const Tensor& x, int64_t axis);

}  // namespace psd::ops
