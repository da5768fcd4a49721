#include "core/tensor/ops/cast.h"

#include <cmath>
#include <cstring>

#include "core/tensor/ops/check.h"
#include "kernels/convert.h"

namespace psd::ops {
namespace {

template <typename F>
void WithAny(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kF32:
      return f(float{});
    case DType::kF64:
      return f(double{});
    case DType::kI64:
      return f(int64_t{});
    case DType::kI32:
      return f(int32_t{});
    case DType::kU8:
      return f(uint8_t{});
    case DType::kBool:
      return f(bool{});
    case DType::kF16:
      return f(kernels::Half{});
    case DType::kBF16:
      return f(kernels::BFloat16{});
  }
}

// Returns element `i`. A bool is read as a byte, which is safe for bytes other than 0 and 1.
template <typename T>
auto Load(const std::byte* from, size_t i) {
  if constexpr (std::is_same_v<T, bool>) {
    return static_cast<uint8_t>(static_cast<uint8_t>(from[i]) != 0 ? 1 : 0);
  } else {
    return reinterpret_cast<const T*>(from)[i];
  }
}

template <typename From, typename To>
void ConvertRun(const std::byte* from, std::byte* to, size_t count) {
  To* out = reinterpret_cast<To*>(to);
  for (size_t i = 0; i < count; ++i) out[i] = kernels::Convert<To>(Load<From>(from, i));
}

bool IsClose(double a, double b, double relative, double absolute) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  if (a == b) return true;
  return std::isfinite(a) && std::isfinite(b) &&
         std::fabs(a - b) <= absolute + relative * std::fabs(b);
}

}  // namespace

absl::StatusOr<Tensor> Cast(const Tensor& x, DType dtype, Allocator* allocator) {
  PSD_RETURN_IF_ERROR(CheckUsable("Cast", x));
  PSD_ASSIGN_OR_RETURN(Tensor dense, x.Contiguous(allocator));
  if (x.dtype() == dtype) return dense;
  PSD_ASSIGN_OR_RETURN(Tensor out, Tensor::Empty(x.shape(), dtype, allocator));
  WithAny(x.dtype(), [&](auto from) {
    WithAny(dtype, [&](auto to) {
      ConvertRun<decltype(from), decltype(to)>(dense.raw_data(), out.mutable_raw_data(),
                                               static_cast<size_t>(x.NumElements()));
    });
  });
  return out;
}

bool Equal(const Tensor& a, const Tensor& b) {
  if (!a.defined() || !b.defined()) return a.defined() == b.defined();
  if (a.shape() != b.shape() || a.dtype() != b.dtype()) return false;
  absl::StatusOr<Tensor> x = a.Contiguous();
  absl::StatusOr<Tensor> y = b.Contiguous();
  if (!x.ok() || !y.ok()) return false;
  return a.NumElements() == 0 || std::memcmp(x->raw_data(), y->raw_data(), a.NumBytes()) == 0;
}

bool AllClose(const Tensor& a, const Tensor& b, double relative, double absolute) {
  if (!a.defined() || !b.defined()) return a.defined() == b.defined();
  if (a.shape() != b.shape() || a.dtype() != b.dtype()) return false;
  absl::StatusOr<Tensor> x = Cast(a, DType::kF64);
  absl::StatusOr<Tensor> y = Cast(b, DType::kF64);
  if (!x.ok() || !y.ok()) return false;
  for (int64_t i = 0; i < a.NumElements(); ++i)
    if (!IsClose(x->data<double>()[i], y->data<double>()[i], relative, absolute)) return false;
  return true;
}

}  // namespace psd::ops
