// Highway's exp, log and tanh, corrected for NaN, infinity and the ends of the range. Included from
// within foreach_target.h only.

#if defined(PSD_KERNELS_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PSD_KERNELS_MATH_INL_H_
#undef PSD_KERNELS_MATH_INL_H_
#else
#define PSD_KERNELS_MATH_INL_H_
#endif

#include <limits>

#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace psd::kernels {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Returns `y`, except in lanes where `x` is NaN: there it returns `x`. It compares by Eq because Ne
// of the packaged Highway says that NaN equals itself on AVX2 and later.
template <class V>
HWY_INLINE V UnlessNan(V x, V y) {
  return hn::IfThenElse(hn::Eq(x, x), y, x);
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V SafeExp(D d, V x) {
  using T = hn::TFromD<D>;
  // The largest argument with a finite result, rounded down.
  const V limit = hn::Set(d, sizeof(T) == 4 ? T(88.72283) : T(709.782712893383973096));
  const V bounded = hn::Min(x, limit);
  const V y = hn::IfThenElse(hn::Gt(x, limit), hn::Set(d, std::numeric_limits<T>::infinity()),
                             hn::Exp(d, bounded));
  return UnlessNan(x, y);
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V SafeLog(D d, V x) {
  using T = hn::TFromD<D>;
  const T inf = std::numeric_limits<T>::infinity();
  const V zero = hn::Zero(d);
  V y = hn::Log(d, x);
  y = hn::IfThenElse(hn::Eq(x, zero), hn::Set(d, -inf), y);
  y = hn::IfThenElse(hn::Lt(x, zero), hn::Set(d, std::numeric_limits<T>::quiet_NaN()), y);
  y = hn::IfThenElse(hn::Eq(x, hn::Set(d, inf)), x, y);
  return UnlessNan(x, y);
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V SafeTanh(D d, V x) {
  using T = hn::TFromD<D>;
  // For arguments from this value on, the result rounds to 1.
  const V limit = hn::Set(d, sizeof(T) == 4 ? T(9.1) : T(19.1));
  const V bounded = hn::Min(hn::Max(x, hn::Neg(limit)), limit);
  return UnlessNan(x, hn::Tanh(d, bounded));
}

}  // namespace HWY_NAMESPACE
}  // namespace psd::kernels
HWY_AFTER_NAMESPACE();

#endif  // PSD_KERNELS_MATH_INL_H_
