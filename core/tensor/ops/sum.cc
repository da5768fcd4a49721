#include "core/tensor/ops/sum.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/device.h"
#include "core/base/status.h"
#include "core/tensor/copy_to.h"
#include "core/tensor/dtype.h"
#include "core/tensor/ops/cast.h"
#include "core/tensor/ops/elementwise.h"

namespace psd::ops {

namespace {

bool IsHalf(DType dtype) {
  return dtype == DType::kF16 || dtype == DType::kBF16;
}

}  // namespace

absl::StatusOr<Tensor> AddToSum(Tensor sum, const Tensor& gradient, bool own) {
  const bool widened = IsHalf(gradient.dtype()) && sum.dtype() == DType::kF32;
  if (sum.shape() != gradient.shape() || (sum.dtype() != gradient.dtype() && !widened)) {
    return absl::InvalidArgumentError(
        absl::StrCat("gradients ", sum.ToString(), " and ", gradient.ToString(),
                     " cannot be added; they must be of one shape ", "and dtype"));
  }
  if (Device* const device = sum.device(); gradient.device() != device) {
    PSD_ASSIGN_OR_RETURN(const Tensor there, CopyTo(device, gradient));
    return AddToSum(std::move(sum), there, own);
  }
  if (!IsHalf(gradient.dtype())) {
    if (!own) return Add(sum, gradient);
    PSD_RETURN_IF_ERROR(AddInPlace(sum, gradient));
    return sum;
  }
  PSD_ASSIGN_OR_RETURN(const Tensor wide, Cast(gradient, DType::kF32));
  if (!widened) {
    PSD_ASSIGN_OR_RETURN(sum, Cast(sum, DType::kF32));
  } else if (!own) {
    return Add(sum, wide);
  }
  PSD_RETURN_IF_ERROR(AddInPlace(sum, wide));
  return sum;
}

}  // namespace psd::ops
