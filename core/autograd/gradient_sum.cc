#include "core/autograd/gradient_sum.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/faults.h"
#include "core/base/status.h"
#include "core/tensor/ops/cast.h"
#include "core/tensor/ops/sum.h"

namespace psd {

absl::Status GradientSums::AddTo(size_t at, const Tensor& gradient, bool anywhere) {
  if (FaultOn("second_gradient_replaces_the_first")) return absl::OkStatus();
  Tensor& sum = sums_[at];
  if (sum.shape() != gradient.shape()) {
    return absl::InvalidArgumentError(absl::StrCat("gradients ", sum.ToString(), " and ",
                                                   gradient.ToString(),
                                                   " for one argument differ in shape"));
  }
  State& state = states_[at];
  const DType dtype = gradient.dtype();
  const bool own = state != State::kGiven || sum.IsExclusive();
  PSD_ASSIGN_OR_RETURN(sum, anywhere ? ops::AddToSumWhereRoom(sum, gradient, own)
                                     : ops::AddToSum(std::move(sum), gradient, own));
  if (sum.dtype() == dtype) {
    state = State::kOwn;
  } else {
    state = dtype == DType::kF16 ? State::kWideF16 : State::kWideBF16;
  }
  return absl::OkStatus();
}

absl::Status GradientSums::Round(Tensor& sum, DType dtype) {
  PSD_ASSIGN_OR_RETURN(sum, ops::Cast(sum, dtype));
  return absl::OkStatus();
}

}  // namespace psd
