#include "core/autograd/gradient_sum.h"

#include "absl/strings/str_cat.h"
#include "core/base/faults.h"
#include "core/base/status.h"
#include "core/tensor/ops/elementwise.h"

namespace psd {
namespace {

absl::StatusOr<Tensor> SumOf(const Tensor& a, const Tensor& b) {
  if (a.shape() == b.shape()) return ops::Add(a, b);
  return absl::InvalidArgumentError(absl::StrCat("gradients ", a.ToString(), " and ", b.ToString(),
                                                 " for one argument differ in shape"));
}

}  // namespace

absl::Status GradientSum::AddTo(const Tensor& gradient) {
  if (own_) return ops::AddInPlace(sum_, gradient);
  if (FaultOn("second_gradient_replaces_the_first")) return absl::OkStatus();
  PSD_ASSIGN_OR_RETURN(sum_, SumOf(sum_, gradient));
  own_ = true;
  return absl::OkStatus();
}

}  // namespace psd
