#include "core/tensor/ops/random.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "core/tensor/ops/check.h"
#include "core/tensor/ops/with_dtype.h"
#include "kernels/random.h"

namespace psd::ops {
namespace {

absl::Status CheckFloat(absl::string_view op, DType dtype) {
  if (dtype == DType::kF32 || dtype == DType::kF64) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(op, " makes f32 and f64, not ", DTypeName(dtype), "; cast its result"));
}

}  // namespace

absl::StatusOr<Tensor> Uniform(const Shape& shape, double low, double high, uint64_t seed,
                               DType dtype, Allocator* allocator) {
  PSD_RETURN_IF_ERROR(CheckFloat("Uniform", dtype));
  if (!(low <= high) || !std::isfinite(high - low)) {
    return absl::InvalidArgumentError(absl::StrCat("Uniform: no numbers are in [", low, ", ", high,
                                                   "); give finite low <= high"));
  }
  PSD_ASSIGN_OR_RETURN(Tensor out, Tensor::Empty(shape, dtype, allocator));
  PSD_RETURN_IF_ERROR(out.CheckOnHost("Uniform"));
  WithFloat(dtype, [&](auto zero) {
    using T = decltype(zero);
    kernels::FillUniform(seed, 0, low, high, out.mutable_data<T>(),
                         static_cast<size_t>(out.NumElements()));
    return 0;
  });
  return out;
}

absl::StatusOr<Tensor> Normal(const Shape& shape, double mean, double deviation, uint64_t seed,
                              DType dtype, Allocator* allocator) {
  PSD_RETURN_IF_ERROR(CheckFloat("Normal", dtype));
  if (!std::isfinite(mean) || !std::isfinite(deviation) || deviation < 0) {
    return absl::InvalidArgumentError(absl::StrCat("Normal: mean ", mean, " and deviation ",
                                                   deviation,
                                                   " must be finite, the deviation not negative"));
  }
  PSD_ASSIGN_OR_RETURN(Tensor out, Tensor::Empty(shape, dtype, allocator));
  PSD_RETURN_IF_ERROR(out.CheckOnHost("Normal"));
  WithFloat(dtype, [&](auto zero) {
    using T = decltype(zero);
    kernels::FillNormal(seed, 0, mean, deviation, out.mutable_data<T>(),
                        static_cast<size_t>(out.NumElements()));
    return 0;
  });
  return out;
}

double KaimingUniformBound(int64_t fan_in) {
  return std::sqrt(6.0 / static_cast<double>(fan_in));
}

}  // namespace psd::ops
