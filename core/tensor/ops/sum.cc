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

absl::StatusOr<Tensor> AddToSumWhereRoom(const Tensor& sum, const Tensor& gradient, bool own) {
  absl::StatusOr<Tensor> added = AddToSum(sum, gradient, own);
  if (sum.OnHost() || !absl::IsResourceExhausted(added.status())) return added;
  PSD_ASSIGN_OR_RETURN(Tensor here, sum.ToHost());
  return AddToSum(std::move(here), gradient, /*own=*/true);
}

absl::StatusOr<Tensor> RoundSumWhereRoom(const Tensor& sum, DType dtype) {
  absl::StatusOr<Tensor> rounded = Cast(sum, dtype);
  if (sum.OnHost() || !absl::IsResourceExhausted(rounded.status())) return rounded;
  PSD_ASSIGN_OR_RETURN(const Tensor here, sum.ToHost());
  return Cast(here, dtype);
}

}  // namespace psd::ops
