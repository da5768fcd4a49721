#include "core/tensor/ops/sum.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/tensor/dtype.h"
#include "core/tensor/ops/cast.h"
#include "core/tensor/ops/elementwise.h"

namespace psd::ops {

absl::StatusOr<Tensor> AddGradients(const Tensor& a, const Tensor& b) {
  if (a.shape() != b.shape() || a.dtype() != b.dtype()) {
    return absl::InvalidArgumentError(absl::StrCat("gradients ", a.ToString(), " and ",
                                                   b.ToString(), " cannot be added; they must be ",
                                                   "of one shape and dtype"));
  }
  if (a.dtype() != DType::kF16 && a.dtype() != DType::kBF16) return Add(a, b);
  PSD_ASSIGN_OR_RETURN(Tensor sum, Cast(a, DType::kF32));
  PSD_ASSIGN_OR_RETURN(const Tensor wide, Cast(b, DType::kF32));
  PSD_RETURN_IF_ERROR(AddInPlace(sum, wide));
  return Cast(sum, a.dtype());
}

}  // namespace psd::ops
