#include "core/tensor/ops/check.h"

#include "absl/strings/str_cat.h"
#include "core/base/remedy.h"

namespace psd::ops {

absl::Status DefinedError(absl::string_view op) {
  return WithRemedy(absl::InvalidArgumentError(absl::StrCat(op, " was given an undefined tensor")),
                    "give it elements first");
}

absl::Status NumbersError(absl::string_view op, const Tensor& x, bool integers) {
  PSD_RETURN_IF_ERROR(CheckDefined(op, x));
  if (IsArithmetic(x.dtype(), integers)) return absl::OkStatus();
  return WithRemedy(absl::InvalidArgumentError(
                        absl::StrCat(op, " was given ", x.ToString(), ", but takes f32 and f64",
                                     integers ? ", i32 and i64" : "", " only")),
                    "cast it first");
}

absl::Status PairError(absl::string_view op, const Tensor& a, const Tensor& b, bool integers) {
  PSD_RETURN_IF_ERROR(CheckNumbers(op, a, integers));
  PSD_RETURN_IF_ERROR(CheckNumbers(op, b, integers));
  if (!AreTogether(a, b)) return MixedDevices(op, a.device(), b.device());
  if (a.dtype() == b.dtype()) return absl::OkStatus();
  return WithRemedy(
      absl::InvalidArgumentError(absl::StrCat(op, " was given ", a.ToString(), " and ",
                                              b.ToString(), ", which differ in dtype")),
      "cast one of them");
}

absl::StatusOr<int> CheckAxis(absl::string_view op, const Tensor& x, int64_t axis) {
  const int64_t rank = x.rank();
  if (axis >= -rank && axis < rank) return static_cast<int>(axis < 0 ? axis + rank : axis);
  return absl::InvalidArgumentError(absl::StrCat(op, ": axis ", axis, " does not exist in ",
                                                 x.ToString(), "; axes go from ", -rank, " to ",
                                                 rank - 1));
}

}  // namespace psd::ops
