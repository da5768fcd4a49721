#include "tests/core/tensor/compare.h"

#include <cmath>
#include <cstdint>
#include <cstring>

#include "absl/status/statusor.h"
#include "core/base/status.h"
#include "core/tensor/dtype.h"
#include "core/tensor/ops/cast.h"

namespace psd::ops {
namespace {

bool IsClose(double a, double b, double relative, double absolute) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  if (a == b) return true;
  return std::isfinite(a) && std::isfinite(b) &&
         std::fabs(a - b) <= absolute + relative * std::fabs(b);
}

// Returns the same elements where the host may read them, contiguous.
absl::StatusOr<Tensor> OnHostDense(const Tensor& x) {
  PSD_ASSIGN_OR_RETURN(const Tensor here, x.ToHost());
  return here.Contiguous();
}

}  // namespace

bool Equal(const Tensor& a, const Tensor& b) {
  if (!a.defined() || !b.defined()) return a.defined() == b.defined();
  if (a.shape() != b.shape() || a.dtype() != b.dtype()) return false;
  absl::StatusOr<Tensor> x = OnHostDense(a);
  absl::StatusOr<Tensor> y = OnHostDense(b);
  if (!x.ok() || !y.ok()) return false;
  return a.NumElements() == 0 || std::memcmp(x->raw_data(), y->raw_data(), a.NumBytes()) == 0;
}

bool AllClose(const Tensor& a, const Tensor& b, double relative, double absolute) {
  if (!a.defined() || !b.defined()) return a.defined() == b.defined();
  if (a.shape() != b.shape() || a.dtype() != b.dtype()) return false;
  absl::StatusOr<Tensor> x = OnHostDense(a);
  absl::StatusOr<Tensor> y = OnHostDense(b);
  if (!x.ok() || !y.ok()) return false;
  x = Cast(*x, DType::kF64);
  y = Cast(*y, DType::kF64);
  if (!x.ok() || !y.ok()) return false;
  for (int64_t i = 0; i < a.NumElements(); ++i)
    if (!IsClose(x->data<double>()[i], y->data<double>()[i], relative, absolute)) return false;
  return true;
}

}  // namespace psd::ops
