#include "core/tensor/ops/random.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "core/base/remedy.h"
#include "core/tensor/ops/check.h"
#include "core/tensor/ops/kernels.h"

namespace psd::ops {
namespace {

absl::Status CheckFloat(absl::string_view op, DType dtype) {
  if (dtype == DType::kF32 || dtype == DType::kF64) return absl::OkStatus();
  return WithRemedy(
      absl::InvalidArgumentError(absl::StrCat(op, " makes f32 and f64, not ", DTypeName(dtype))),
      "cast its result");
}

// Returns a tensor of random numbers in memory of `allocator`, made by its device.
absl::StatusOr<Tensor> Fill(const RandomName& op, const Shape& shape, DType dtype,
                            Allocator* allocator, uint64_t seed, double first, double second) {
  PSD_ASSIGN_OR_RETURN(Tensor out, Tensor::Empty(shape, dtype, allocator));
  PSD_ASSIGN_OR_RETURN(RandomKernel* const kernel, KernelFor(op, out));
  kernel(StreamFor(out), dtype, seed, first, second, out.mutable_address(),
         static_cast<size_t>(out.NumElements()));
  return out;
}

}  // namespace

absl::StatusOr<Tensor> Uniform(const Shape& shape, double low, double high, uint64_t seed,
                               DType dtype, Allocator* allocator) {
  PSD_RETURN_IF_ERROR(CheckFloat("Uniform", dtype));
  if (!(low <= high) || !std::isfinite(high - low)) {
    return WithRemedy(absl::InvalidArgumentError(
                          absl::StrCat("Uniform: no numbers are in [", low, ", ", high, ")")),
                      "give finite low <= high");
  }
  return Fill(kUniform, shape, dtype, allocator, seed, low, high);
}

absl::StatusOr<Tensor> Normal(const Shape& shape, double mean, double deviation, uint64_t seed,
                              DType dtype, Allocator* allocator) {
  PSD_RETURN_IF_ERROR(CheckFloat("Normal", dtype));
  if (!std::isfinite(mean) || !std::isfinite(deviation) || deviation < 0) {
    return absl::InvalidArgumentError(absl::StrCat("Normal: mean ", mean, " and deviation ",
                                                   deviation,
                                                   " must be finite, the deviation not negative"));
  }
  return Fill(kNormal, shape, dtype, allocator, seed, mean, deviation);
}

}  // namespace psd::ops
