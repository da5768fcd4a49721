// The loop of every optimizer kernel, once per instruction set. Included from within
// foreach_target.h only.

#if defined(PSD_KERNELS_OPTIM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PSD_KERNELS_OPTIM_INL_H_
#undef PSD_KERNELS_OPTIM_INL_H_
#else
#define PSD_KERNELS_OPTIM_INL_H_
#endif

#include <cstring>
#include <limits>

#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/optim_arrays.h"

HWY_BEFORE_NAMESPACE();
namespace psd::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// State arrays that an optimizer may have, at most.
inline constexpr size_t kMaxStates = 3;

// What a gradient element is multiplied by.
template <typename T>
HWY_INLINE T GradientFactor(const OptimArrays<T>& arrays, bool maximize) {
  return static_cast<T>(maximize ? -arrays.gradient_scale : arrays.gradient_scale);
}

// Scaled, then clamped to +-limit; a NaN stays one. The branch is the same for all elements.
template <class D, class V, typename T = hn::TFromD<D>>
HWY_INLINE V Prepared(D d, V gradient, T factor, T limit) {
  gradient = hn::Mul(gradient, hn::Set(d, factor));
  if (limit < std::numeric_limits<T>::infinity()) {
    const V most = hn::Set(d, limit);
    const auto beyond = hn::Gt(hn::Abs(gradient), most);
    gradient = hn::IfThenElse(beyond, hn::CopySign(most, gradient), gradient);
  }
  return gradient;
}

// The last elements, fewer than a vector: moved through padded copies, so that they take the very
// same operations as the others and nothing behind the arrays is touched.
template <class D, class Update, typename T = hn::TFromD<D>>
HWY_INLINE void SweepTail(D d, const Update& update, const OptimArrays<T>& arrays, size_t done) {
  HWY_ALIGN T parameter[HWY_MAX_BYTES / sizeof(T)] = {};
  HWY_ALIGN T gradient[HWY_MAX_BYTES / sizeof(T)] = {};
  HWY_ALIGN T state[kMaxStates][HWY_MAX_BYTES / sizeof(T)] = {};
  const size_t bytes = (arrays.size - done) * sizeof(T);
  std::memcpy(parameter, arrays.parameter + done, bytes);
  std::memcpy(gradient, arrays.gradient + done, bytes);
  for (size_t s = 0; s < Update::kStates; ++s) std::memcpy(state[s], update.state[s] + done, bytes);

  Update tail = update;
  for (size_t s = 0; s < Update::kStates; ++s) tail.state[s] = state[s];
  hn::Store(tail(d, hn::Load(d, parameter), hn::Load(d, gradient), 0), d, parameter);

  std::memcpy(arrays.next + done, parameter, bytes);
  for (size_t s = 0; s < Update::kStates; ++s) std::memcpy(update.state[s] + done, state[s], bytes);
}

// How far ahead of the loop large arrays are fetched (measured: 512 to 2,048 do as well, and Adam
// runs 8 % slower without).
inline constexpr size_t kPrefetchBytes = 1024;

template <class Update, typename T>
HWY_INLINE void PrefetchAhead(const Update& update, const OptimArrays<T>& arrays, size_t i) {
  const size_t ahead = i + kPrefetchBytes / sizeof(T);
  if (ahead >= arrays.size) return;
  hwy::Prefetch(arrays.parameter + ahead);
  hwy::Prefetch(arrays.gradient + ahead);
  for (size_t s = 0; s < Update::kStates; ++s) hwy::Prefetch(update.state[s] + ahead);
}

// One pass over all arrays. `update(d, parameter, gradient, i)` loads and stores its own state at
// element i and returns the new parameter.
template <bool kPastCache, class D, class Update, typename T = hn::TFromD<D>>
HWY_INLINE void SweepInto(D d, const Update& update, const OptimArrays<T>& arrays) {
  const size_t lanes = hn::Lanes(d);
  const size_t whole = arrays.size - arrays.size % lanes;
  for (size_t i = 0; i < whole; i += lanes) {
    if (kPastCache) PrefetchAhead(update, arrays, i);
    const auto next =
        update(d, hn::Load(d, arrays.parameter + i), hn::LoadU(d, arrays.gradient + i), i);
    if (kPastCache) {
      hn::Stream(next, d, arrays.next + i);
    } else {
      hn::Store(next, d, arrays.next + i);
    }
  }
  if (whole < arrays.size) SweepTail(d, update, arrays, whole);
  // Streamed stores are weakly ordered: whoever publishes `next` must not overtake them.
  if (kPastCache) hwy::FlushStream();
}

template <class Update, typename T>
HWY_INLINE void Sweep(const Update& update, const OptimArrays<T>& arrays) {
  const hn::ScalableTag<T> d;
  const size_t touched = arrays.size * sizeof(T) * (3 + Update::kStates);
  if (arrays.next != arrays.parameter && WritesPastCache(touched)) {
    SweepInto<true>(d, update, arrays);
  } else {
    SweepInto<false>(d, update, arrays);
  }
}

}  // namespace psd::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
