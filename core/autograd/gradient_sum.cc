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

absl::Status GradientSum::Add(GradientSum other) {
  if (!other.defined()) return absl::OkStatus();
  if (!own_) std::swap(*this, other);
  if (!other.defined()) return absl::OkStatus();
  if (own_) return ops::AddInPlace(sum_, other.sum_);
  if (FaultOn("second_gradient_replaces_the_first")) return absl::OkStatus();
  PSD_ASSIGN_OR_RETURN(sum_, SumOf(sum_, other.sum_));
  own_ = true;
  return absl::OkStatus();
}

Tensor GradientSum::Take() {
  own_ = false;
  return std::exchange(sum_, Tensor());
}

}  // namespace psd
