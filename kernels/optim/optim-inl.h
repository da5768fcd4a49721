// The loop that all optimizer kernels share, compiled once per instruction set. Included from
// within foreach_target.h only.
//
// An optimizer is given as an update: a struct with its number of state arrays (kStates), the
// number type of its state (Number), the constants of one step, and
//   V operator()(D d, V parameter, V gradient, V& state0, V& state1, V& state2) const
// which updates the state and returns the new parameter. The gradient passed to it is already
// scaled, limited, negated (maximize), and has the weight decay added.

#if defined(PSD_KERNELS_OPTIM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PSD_KERNELS_OPTIM_INL_H_
#undef PSD_KERNELS_OPTIM_INL_H_
#else
#define PSD_KERNELS_OPTIM_INL_H_
#endif

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/convert-inl.h"
#include "kernels/optim/arrays.h"
#include "kernels/optim/rounding.h"

HWY_BEFORE_NAMESPACE();
namespace psd::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Returns the larger of `a` and `b`, or NaN if either is NaN; hn::Max does not promise the latter.
template <class V>
HWY_INLINE V MaxOrNaN(V a, V b) {
  return hn::IfThenElse(hn::Or(hn::IsNaN(a), hn::Gt(a, b)), a, b);
}

// The changes to a gradient before the update uses it.
struct GradientTerms {
  bool maximize = false;    // whether the gradient is negated
  double weight_decay = 0;  // weight_decay * parameter is added
};

// The gradient of an update is factor * gradient + weight_decay * parameter.
template <typename T>
struct GradientFactors {
  T factor;
  T weight_decay;
};

// LoadSome and StoreSome access the last elements of an array, fewer than a vector. They access
// nothing past the array. Between them the elements go through the same vector operations as all
// others, so results do not depend on an element's position.
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2
template <class D, typename T>
HWY_INLINE hn::Vec<D> LoadSome(D d, const T* from, size_t count) {
  return hn::MaskedLoad(hn::FirstN(d, count), d, from);
}
template <class D, class V, typename T>
HWY_INLINE void StoreSome(D d, V v, T* to, size_t count) {
  hn::BlendedStore(v, hn::FirstN(d, count), d, to);
}
#else
template <class D, typename T>
HWY_INLINE hn::Vec<D> LoadSome(D d, const T* from, size_t count) {
  HWY_ALIGN T lanes[HWY_MAX_BYTES / sizeof(T)] = {};
  std::memcpy(lanes, from, count * sizeof(T));
  return hn::Load(d, lanes);
}
template <class D, class V, typename T>
HWY_INLINE void StoreSome(D d, V v, T* to, size_t count) {
  HWY_ALIGN T lanes[HWY_MAX_BYTES / sizeof(T)];
  hn::Store(v, d, lanes);
  std::memcpy(to, lanes, count * sizeof(T));
}
#endif

// How a vector of elements is loaded and stored: through the caches, stored past them, or only its
// first elements.
enum class Access { kCached, kPastCache, kSome };

template <Access kAccess, class D, typename T>
HWY_INLINE hn::Vec<D> LoadAs(D d, const T* from, size_t count) {
  if constexpr (kAccess == Access::kSome) return LoadSome(d, from, count);
  return hn::LoadU(d, from);
}

template <Access kAccess, class D, class V, typename T>
HWY_INLINE void StoreAs(D d, V v, T* to, size_t count) {
  if constexpr (kAccess == Access::kSome) {
    StoreSome(d, v, to, count);
  } else if constexpr (kAccess == Access::kPastCache) {
    hn::Stream(v, d, to);
  } else {
    hn::Store(v, d, to);
  }
}

// Returns the address of element i of an array of T.
template <typename T>
HWY_INLINE const T* At(const void* array, size_t i) {
  return static_cast<const T*>(array) + i;
}
template <typename T>
HWY_INLINE T* At(void* array, size_t i) {
  return static_cast<T*>(array) + i;
}

// Updates the elements of one vector, from index i on: `count` of them for kSome, otherwise all.
// Requires: all arrays, also those of the parameter, have elements of type T.
template <Access kAccess, class D, class Update, typename T>
HWY_INLINE void UpdateVector(D d, const Update& update, const GradientFactors<T>& factors,
                             const OptimArrays& arrays, size_t i, size_t count) {
  constexpr Access kInPlace = kAccess == Access::kSome ? Access::kSome : Access::kCached;
  const auto parameter = LoadAs<kAccess>(d, At<T>(arrays.parameter, i), count);
  auto gradient = LoadAs<kAccess>(d, At<T>(arrays.gradient, i), count);
  gradient = hn::Mul(gradient, hn::Set(d, factors.factor));
  // Without decay the parameter must not enter the gradient at all: 0 * infinity is not 0.
  const auto decay = hn::Set(d, factors.weight_decay);
  gradient =
      hn::IfThenElse(hn::Eq(decay, hn::Zero(d)), gradient, hn::MulAdd(parameter, decay, gradient));
  auto state0 = hn::Zero(d), state1 = hn::Zero(d), state2 = hn::Zero(d);
  if constexpr (Update::kStates > 0) state0 = LoadAs<kAccess>(d, At<T>(arrays.state[0], i), count);
  if constexpr (Update::kStates > 1) state1 = LoadAs<kAccess>(d, At<T>(arrays.state[1], i), count);
  if constexpr (Update::kStates > 2) state2 = LoadAs<kAccess>(d, At<T>(arrays.state[2], i), count);
  const auto next = update(d, parameter, gradient, state0, state1, state2);
  if constexpr (Update::kStates > 0) StoreAs<kInPlace>(d, state0, At<T>(arrays.state[0], i), count);
  if constexpr (Update::kStates > 1) StoreAs<kInPlace>(d, state1, At<T>(arrays.state[1], i), count);
  if constexpr (Update::kStates > 2) StoreAs<kInPlace>(d, state2, At<T>(arrays.state[2], i), count);
  StoreAs<kAccess>(d, next, At<T>(arrays.next, i), count);
}

// The distance at which large arrays are prefetched ahead of the loop. By measurement, distances
// from 512 to 4,096 bytes are equally fast, and without prefetching Adam is 8 % slower.
inline constexpr size_t kPrefetchBytes = 1024;

// Prefetches the arrays kPrefetchBytes ahead of index i. The addresses may be past the arrays; a
// prefetch never faults.
template <class Update, typename T = typename Update::Number>
HWY_INLINE void PrefetchAhead(const OptimArrays& arrays, size_t i) {
  const size_t ahead = i + kPrefetchBytes / sizeof(T);
  hwy::Prefetch(At<T>(arrays.parameter, ahead));
  hwy::Prefetch(At<T>(arrays.gradient, ahead));
  for (size_t s = 0; s < Update::kStates; ++s) hwy::Prefetch(At<T>(arrays.state[s], ahead));
}

// Makes one pass over all arrays. The arguments are passed by value, so that the compiler knows
// that no store changes them. Requires: all arrays have elements of type T.
template <bool kPastCache, class Update, typename T>
HWY_NOINLINE void SweepWide(const Update update, const GradientFactors<T> factors,
                            const OptimArrays arrays) {
  const hn::ScalableTag<T> d;
  constexpr Access kAccess = kPastCache ? Access::kPastCache : Access::kCached;
  const size_t lanes = hn::Lanes(d);
  const size_t line = std::max(lanes, kOptimAlignment / sizeof(T));
  size_t i = 0;
  for (; i + line <= arrays.size; i += line) {
    if constexpr (kPastCache) PrefetchAhead<Update>(arrays, i);
    for (size_t j = 0; j < line; j += lanes) {
      UpdateVector<kAccess>(d, update, factors, arrays, i + j, lanes);
    }
  }
  for (; i + lanes <= arrays.size; i += lanes)
    UpdateVector<Access::kCached>(d, update, factors, arrays, i, lanes);
  if (i < arrays.size) UpdateVector<Access::kSome>(d, update, factors, arrays, i, arrays.size - i);
}

// Returns the gradient multiplied by `factor`, then clamped to +-limit; a NaN stays NaN.
template <class D, class V, typename T = hn::TFromD<D>>
HWY_INLINE V Prepared(D d, V gradient, T factor, T limit) {
  const V most = hn::Set(d, limit);
  gradient = hn::Mul(gradient, hn::Set(d, factor));
  const auto beyond = hn::Gt(hn::Abs(gradient), most);
  return hn::IfThenElse(beyond, hn::CopySign(most, gradient), gradient);
}

// Computes numbers[i] = from[i] * scale, clamped to +-limit, for i < size. `numbers` has room for
// whole vectors.
template <typename P, typename T>
HWY_INLINE void FetchNumbers(const P* from, size_t size, double scale, double limit, T* numbers) {
  const hn::ScalableTag<T> d;
  const size_t lanes = hn::Lanes(d);
  const T factor = static_cast<T>(scale), most = static_cast<T>(limit);
  for (size_t i = 0; i < size; i += lanes) {
    auto g = hn::Zero(d);
    if (i + lanes <= size) {
      if constexpr (std::is_same_v<P, double>) {
        g = hn::LoadU(d, from + i);
      } else {
        g = LoadFloats(d, from + i);
      }
    } else {
      HWY_ALIGN T some[HWY_MAX_BYTES / sizeof(T)] = {};
      for (size_t j = 0; i + j < size; ++j) some[j] = static_cast<T>(internal::Number(from[i + j]));
      g = hn::Load(d, some);
    }
    hn::Store(Prepared(d, g, factor, most), d, numbers + i);
  }
}

// Rounds `numbers` to bf16, up or down at random with the bits of RoundingBits(key, i). Both arrays
// have room for whole vectors.
HWY_INLINE void RoundAtRandom(const float* numbers, size_t size, uint64_t key, BFloat16* rounded) {
  const hn::ScalableTag<float> d;
  const hn::Rebind<uint32_t, decltype(d)> d32;
  const hn::Rebind<uint16_t, decltype(d)> d16;
  for (size_t i = 0; i < size; i += hn::Lanes(d)) {
    auto x = hn::Iota(d32, static_cast<uint32_t>(i) + static_cast<uint32_t>(key));
    x = hn::Mul(hn::Xor(x, hn::ShiftRight<16>(x)), hn::Set(d32, 0x7feb352du));
    x = hn::Xor(x, hn::Set(d32, static_cast<uint32_t>(key >> 32)));
    x = hn::Mul(hn::Xor(x, hn::ShiftRight<15>(x)), hn::Set(d32, 0x846ca68bu));
    x = hn::ShiftRight<16>(hn::Xor(x, hn::ShiftRight<16>(x)));
    const auto v = hn::Load(d, numbers + i);
    const auto bits = hn::Add(hn::BitCast(d32, v), x);
    hn::Store(BFloat16Bits(d, v, bits), d16, &rounded[i].bits);
  }
}

// Copies 16-bit elements to `to`, past the caches if `past_cache`. Both arrays are aligned.
HWY_INLINE void PutElements(const uint16_t* from, size_t size, bool past_cache, uint16_t* to) {
  const hn::ScalableTag<uint16_t> d;
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  if (past_cache) {
    for (; i + lanes <= size; i += lanes) hn::Stream(hn::Load(d, from + i), d, to + i);
  }
  std::memcpy(to + i, from + i, (size - i) * sizeof(uint16_t));
}

// Buffers for one part of a parameter, small enough to stay in the first-level cache. They have
// room for whole vectors.
template <typename T>
struct Scratch {
  HWY_ALIGN T gradient[kOptimPartElements];
  HWY_ALIGN T parameter[kOptimPartElements];
  HWY_ALIGN uint16_t rounded[kOptimPartElements];
};

// Rounds `numbers` to nearest. Both arrays have room for whole vectors.
template <typename P>
HWY_INLINE void RoundToNearest(const float* numbers, size_t size, P* rounded) {
  const hn::ScalableTag<float> d;
  for (size_t i = 0; i < size; i += hn::Lanes(d))
    StoreFloats(d, hn::Load(d, numbers + i), rounded + i);
}

// Updates a part of a parameter that is stored in 16 bits. The numbers of its gradient have been
// fetched to `scratch`, where the parameter is converted too.
template <typename P, class Update>
HWY_INLINE void SweepNarrow(const Update& update, const GradientFactors<float>& factors,
                            const OptimBatch& batch, const OptimArrays& part, bool past_cache,
                            Scratch<float>& scratch) {
  FetchNumbers(static_cast<const P*>(part.parameter), part.size, 1,
               std::numeric_limits<double>::infinity(), scratch.parameter);
  OptimArrays wide = part;
  wide.parameter = wide.next = scratch.parameter;
  wide.gradient = scratch.gradient;
  SweepWide<false>(update, factors, wide);
  if (std::is_same_v<P, BFloat16> && batch.stochastic_rounding) {
    const uint64_t index = part.first_element / kOptimPartElements;
    RoundAtRandom(scratch.parameter, part.size, RoundingKey(part.rounding_seed, batch.step, index),
                  reinterpret_cast<BFloat16*>(scratch.rounded));
  } else {
    RoundToNearest(scratch.parameter, part.size, reinterpret_cast<P*>(scratch.rounded));
  }
  PutElements(scratch.rounded, part.size, past_cache, static_cast<uint16_t*>(part.next));
}

// Updates one array in parts that stay in the first-level cache. This is needed where SweepWide
// cannot work on the arrays directly: for 16-bit elements, and if gradients are limited.
template <typename P, class Update, typename T>
HWY_NOINLINE void SweepParts(const Update& update, const GradientFactors<T>& factors,
                             const OptimBatch& batch, const OptimArrays& arrays, bool past_cache) {
  Scratch<T> scratch;
  for (size_t at = 0; at < arrays.size; at += kOptimPartElements) {
    OptimArrays part =
        PartOf(arrays, batch.type, at, std::min(kOptimPartElements, arrays.size - at));
    FetchNumbers(static_cast<const P*>(part.gradient), part.size, batch.gradient_scale,
                 batch.gradient_limit, scratch.gradient);
    if constexpr (std::is_same_v<P, T>) {
      part.gradient = scratch.gradient;
      past_cache ? SweepWide<true>(update, factors, part) : SweepWide<false>(update, factors, part);
    } else {
      SweepNarrow<P>(update, factors, batch, part, past_cache, scratch);
    }
  }
}

template <typename P, class Update, typename T = typename Update::Number>
HWY_INLINE void SweepArrays(const Update& update, const GradientTerms& terms,
                            const OptimBatch& batch, const OptimArrays& arrays, bool past_cache) {
  GradientFactors<T> factors = {terms.maximize ? T{-1} : T{1}, static_cast<T>(terms.weight_decay)};
  if (std::is_same_v<P, T> && batch.gradient_limit == std::numeric_limits<double>::infinity()) {
    factors.factor *= static_cast<T>(batch.gradient_scale);
    past_cache ? SweepWide<true>(update, factors, arrays)
               : SweepWide<false>(update, factors, arrays);
  } else {
    SweepParts<P>(update, factors, batch, arrays, past_cache);
  }
}

// Prefetches an array line by line in ascending order, which the hardware's own prefetcher detects.
HWY_INLINE void PrefetchLines(const void* from, size_t bytes) {
  const auto* first = static_cast<const char*>(from);
  for (size_t at = 0; at < bytes; at += kOptimAlignment) hwy::Prefetch(first + at);
}

// Prefetches the first kPrefetchBytes of each of the arrays. The array that is only written is
// included, because a store waits for its line too, unless it is written past the caches.
template <typename P, class Update, typename T = typename Update::Number>
HWY_INLINE void PrefetchStart(const OptimArrays& arrays, bool past_cache) {
  const size_t bytes = std::min(arrays.size * sizeof(P), kPrefetchBytes);
  PrefetchLines(arrays.parameter, bytes);
  if (!past_cache) PrefetchLines(arrays.next, bytes);
  PrefetchLines(arrays.gradient, bytes);
  const size_t state_bytes = std::min(arrays.size * sizeof(T), kPrefetchBytes);
  for (size_t s = 0; s < Update::kStates; ++s) PrefetchLines(arrays.state[s], state_bytes);
}

// How many arrays ahead of the loop PrefetchStart is called.
inline constexpr size_t kArraysAhead = 2;

template <typename P, class Update, typename T = typename Update::Number>
HWY_INLINE void SweepBatch(const Update& update, const GradientTerms& terms,
                           const OptimBatch& batch) {
  size_t elements = 0;
  for (size_t i = 0; i < batch.count; ++i) elements += batch.arrays[i].size;
  const bool large = WritesPastCache(elements * (3 * sizeof(P) + Update::kStates * sizeof(T)));
  for (size_t i = 0; i < batch.count; ++i) {
    const OptimArrays& arrays = batch.arrays[i];
    if (i + kArraysAhead < batch.count)
      PrefetchStart<P, Update>(batch.arrays[i + kArraysAhead], large);
    SweepArrays<P>(update, terms, batch, arrays, large && arrays.next != arrays.parameter);
  }
  // Streamed stores are weakly ordered. They must be visible before the caller publishes `next`.
  if (large) hwy::FlushStream();
}

// Updates all arrays of a batch. Requires: Update::Number is the type of state of batch.type.
template <class Update>
HWY_INLINE void Sweep(const Update& update, const GradientTerms& terms, const OptimBatch& batch) {
  if constexpr (std::is_same_v<typename Update::Number, double>) {
    SweepBatch<double>(update, terms, batch);
  } else if (batch.type == OptimType::kF16) {
    SweepBatch<Half>(update, terms, batch);
  } else if (batch.type == OptimType::kBF16) {
    SweepBatch<BFloat16>(update, terms, batch);
  } else {
    SweepBatch<float>(update, terms, batch);
  }
}

// Calls f with a zero of the type in which a batch of `type` is computed: float or double.
template <class F>
HWY_INLINE void WithNumber(OptimType type, const F& f) {
  if (type == OptimType::kF64) {
    f(double{});
  } else {
    f(float{});
  }
}

}  // namespace psd::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
