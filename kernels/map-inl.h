// Applies functions to dense runs of numbers: full vectors first, then one partial vector, which
// goes through a buffer. Included from within foreach_target.h only.

#if defined(PSD_KERNELS_MAP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PSD_KERNELS_MAP_INL_H_
#undef PSD_KERNELS_MAP_INL_H_
#else
#define PSD_KERNELS_MAP_INL_H_
#endif

#include <cstddef>
#include <cstring>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace psd::kernels {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Returns a vector with `count` elements from `from` in its first lanes, and `fill` in the others.
// Requires: 0 < count < Lanes(d).
template <class D, typename T = hn::TFromD<D>>
HWY_INLINE hn::Vec<D> LoadPartial(D d, const T* from, size_t count, T fill) {
  HWY_ALIGN T lanes[HWY_MAX_BYTES / sizeof(T)];
  hn::Store(hn::Set(d, fill), d, lanes);
  std::memcpy(lanes, from, count * sizeof(T));
  return hn::Load(d, lanes);
}

template <class D, typename T = hn::TFromD<D>>
HWY_INLINE void StorePartial(D d, hn::Vec<D> v, T* to, size_t count) {
  HWY_ALIGN T lanes[HWY_MAX_BYTES / sizeof(T)];
  hn::Store(v, d, lanes);
  std::memcpy(to, lanes, count * sizeof(T));
}

// An argument of Map and Map2: a run of numbers. The unused lanes of a partial vector are 1.
template <typename T>
struct Run {
  const T* data;
  template <class D>
  HWY_INLINE hn::Vec<D> Full(D d, size_t at) const {
    return hn::LoadU(d, data + at);
  }
  template <class D>
  HWY_INLINE hn::Vec<D> Partial(D d, size_t at, size_t count) const {
    return LoadPartial(d, data + at, count, T{1});
  }
};

// An argument of Map and Map2: one number that is used for all elements.
template <typename T>
struct Same {
  T value;
  template <class D>
  HWY_INLINE hn::Vec<D> Full(D d, size_t) const {
    return hn::Set(d, value);
  }
  template <class D>
  HWY_INLINE hn::Vec<D> Partial(D d, size_t, size_t) const {
    return hn::Set(d, value);
  }
};

// Computes out[i] = f(d, x[i]).
template <class D, class F, class X, typename T = hn::TFromD<D>>
HWY_INLINE void Map(D d, F f, X x, T* out, size_t count) {
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) hn::StoreU(f(d, x.Full(d, i)), d, out + i);
  if (i < count) StorePartial(d, f(d, x.Partial(d, i, count - i)), out + i, count - i);
}

// Computes out[i] = f(d, x[i], y[i]).
template <class D, class F, class X, class Y, typename T = hn::TFromD<D>>
HWY_INLINE void Map2(D d, F f, X x, Y y, T* out, size_t count) {
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) hn::StoreU(f(d, x.Full(d, i), y.Full(d, i)), d, out + i);
  if (i < count) {
    const size_t rest = count - i;
    StorePartial(d, f(d, x.Partial(d, i, rest), y.Partial(d, i, rest)), out + i, rest);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace psd::kernels
HWY_AFTER_NAMESPACE();

#endif  // PSD_KERNELS_MAP_INL_H_
