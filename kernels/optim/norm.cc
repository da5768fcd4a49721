#include "kernels/optim/norm.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/optim/norm.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/convert-inl.h"

HWY_BEFORE_NAMESPACE();
namespace psd::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Loads as many elements of x as `d`, a tag of double, has lanes, and converts them to double.
template <class D>
HWY_INLINE hn::Vec<D> LoadDoubles(D d, const double* x) {
  return hn::LoadU(d, x);
}
template <class D, typename T>
HWY_INLINE hn::Vec<D> LoadDoubles(D d, const T* x) {
  return hn::PromoteTo(d, LoadFloats(hn::Rebind<float, D>(), x));
}

template <typename T>
HWY_INLINE double SumOfSquaresT(const T* x, size_t size) {
  const hn::ScalableTag<double> d;
  const size_t lanes = hn::Lanes(d);
  auto sum0 = hn::Zero(d), sum1 = hn::Zero(d), sum2 = hn::Zero(d), sum3 = hn::Zero(d);
  size_t i = 0;
  for (; i + 4 * lanes <= size; i += 4 * lanes) {
    const auto x0 = LoadDoubles(d, x + i), x1 = LoadDoubles(d, x + i + lanes);
    const auto x2 = LoadDoubles(d, x + i + 2 * lanes), x3 = LoadDoubles(d, x + i + 3 * lanes);
    sum0 = hn::MulAdd(x0, x0, sum0);
    sum1 = hn::MulAdd(x1, x1, sum1);
    sum2 = hn::MulAdd(x2, x2, sum2);
    sum3 = hn::MulAdd(x3, x3, sum3);
  }
  const auto sums = hn::Add(hn::Add(sum0, sum1), hn::Add(sum2, sum3));
  double total = hn::GetLane(hn::SumOfLanes(d, sums));
  for (; i < size; ++i) {
    const auto value = static_cast<double>(internal::Number(x[i]));
    total += value * value;
  }
  return total;
}

double SquaresF32(const float* x, size_t size) {
  return SumOfSquaresT(x, size);
}
double SquaresF64(const double* x, size_t size) {
  return SumOfSquaresT(x, size);
}
double SquaresF16(const Half* x, size_t size) {
  return SumOfSquaresT(x, size);
}
double SquaresBF16(const BFloat16* x, size_t size) {
  return SumOfSquaresT(x, size);
}

}  // namespace psd::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace psd::kernels {

HWY_EXPORT(SquaresF32);
HWY_EXPORT(SquaresF64);
HWY_EXPORT(SquaresF16);
HWY_EXPORT(SquaresBF16);

double SumOfSquares(const float* x, size_t size) {
  return HWY_DYNAMIC_DISPATCH(SquaresF32)(x, size);
}
double SumOfSquares(const double* x, size_t size) {
  return HWY_DYNAMIC_DISPATCH(SquaresF64)(x, size);
}
double SumOfSquares(const Half* x, size_t size) {
  return HWY_DYNAMIC_DISPATCH(SquaresF16)(x, size);
}
double SumOfSquares(const BFloat16* x, size_t size) {
  return HWY_DYNAMIC_DISPATCH(SquaresBF16)(x, size);
}

}  // namespace psd::kernels
#endif  // HWY_ONCE
