#include "core/autograd/gradient_sum.h"

#include "absl/strings/str_cat.h"
#include "core/base/faults.h"
#include "core/base/status.h"
#include "core/tensor/ops/elementwise.h"

namespace psd {
absl::Status GradientSum::AddTo(const Tensor& gradient) {
  if (FaultOn("second_gradient_replaces_the_first")) return absl::OkStatus();
  if (sum_.shape() != gradient.shape()) {
    return absl::InvalidArgumentError(absl::StrCat("gradients ", sum_.ToString(), " and ",
                                                   gradient.ToString(),
                                                   " for one argument differ in shape"));
  }
  if (own_ || sum_.IsExclusive()) return ops::AddInPlace(sum_, gradient);
  PSD_ASSIGN_OR_RETURN(sum_, ops::Add(sum_, gradient));
  own_ = true;
  return absl::OkStatus();
}

}  // namespace psd
