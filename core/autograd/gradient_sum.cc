#include "core/autograd/gradient_sum.h"

#include "absl/strings/str_cat.h"
#include "core/base/faults.h"
#include "core/base/status.h"
#include "core/tensor/dtype.h"
#include "core/tensor/ops/elementwise.h"
#include "core/tensor/ops/sum.h"

namespace psd {

absl::Status GradientSums::AddTo(size_t at, const Tensor& gradient) {
  if (FaultOn("second_gradient_replaces_the_first")) return absl::OkStatus();
  Tensor& sum = sums_[at];
  if (sum.shape() != gradient.shape()) {
    return absl::InvalidArgumentError(absl::StrCat("gradients ", sum.ToString(), " and ",
                                                   gradient.ToString(),
                                                   " for one argument differ in shape"));
  }
  const bool wide = sum.dtype() == DType::kF32 || sum.dtype() == DType::kF64;
  if (wide && (own_[at] || sum.IsExclusive())) return ops::AddInPlace(sum, gradient);
  PSD_ASSIGN_OR_RETURN(sum, ops::AddGradients(sum, gradient));
  own_[at] = true;
  return absl::OkStatus();
}

}  // namespace psd
