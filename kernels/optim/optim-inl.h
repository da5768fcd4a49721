// The loop of every optimizer kernel, once per instruction set. Included from within
// foreach_target.h only.
//
// An optimizer is an update: a struct with the state arrays that it has (kStates), the number type
// of its state (Number), the constants of one step, and
//   V operator()(D d, V parameter, V gradient, V& state0, V& state1, V& state2) const
// that returns the new parameter. It sees the gradient scaled, limited, negated (maximize) and with
// the decay added.

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

// The larger of `a` and `b`; not a number if either is not, which hn::Max does not promise.
template <class V>
HWY_INLINE V MaxOrNaN(V a, V b) {
  return hn::IfThenElse(hn::Or(hn::IsNaN(a), hn::Gt(a, b)), a, b);
}

// What happens to a gradient before the update sees it.
struct GradientTerms {
  bool maximize = false;
  double weight_decay = 0;  // times the parameter is added
};

// The arrays of one pass, all of the type in which it computes.
template <typename T>
struct Streams {
  const T* parameter;
  T* next;
  const T* gradient;
  T* state[kMaxOptimStates];
  size_t size;
  T factor;  // of the gradient
  T weight_decay;
};

// The last elements, fewer than a vector: nothing behind the arrays is touched, and the elements
// take the very same operations as the others.
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

// Where a vector of elements comes from and goes to.
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

// The elements of one vector, from i on; `count` of them (kSome) or all.
template <Access kAccess, class D, class Update, typename T>
HWY_INLINE void UpdateVector(D d, const Update& update, const Streams<T>& streams, size_t i,
                             size_t count) {
  constexpr Access kInPlace = kAccess == Access::kSome ? Access::kSome : Access::kCached;
  const auto parameter = LoadAs<kAccess>(d, streams.parameter + i, count);
  auto gradient = LoadAs<kAccess>(d, streams.gradient + i, count);
  gradient = hn::Mul(gradient, hn::Set(d, streams.factor));
  // Without decay the parameter must not enter the gradient at all: 0 * infinity is not 0.
  const auto decay = hn::Set(d, streams.weight_decay);
  gradient =
      hn::IfThenElse(hn::Eq(decay, hn::Zero(d)), gradient, hn::MulAdd(parameter, decay, gradient));
  auto state0 = hn::Zero(d), state1 = hn::Zero(d), state2 = hn::Zero(d);
  if constexpr (Update::kStates > 0) state0 = LoadAs<kAccess>(d, streams.state[0] + i, count);
  if constexpr (Update::kStates > 1) state1 = LoadAs<kAccess>(d, streams.state[1] + i, count);
  if constexpr (Update::kStates > 2) state2 = LoadAs<kAccess>(d, streams.state[2] + i, count);
  const auto next = update(d, parameter, gradient, state0, state1, state2);
  if constexpr (Update::kStates > 0) StoreAs<kInPlace>(d, state0, streams.state[0] + i, count);
  if constexpr (Update::kStates > 1) StoreAs<kInPlace>(d, state1, streams.state[1] + i, count);
  if constexpr (Update::kStates > 2) StoreAs<kInPlace>(d, state2, streams.state[2] + i, count);
  StoreAs<kAccess>(d, next, streams.next + i, count);
}

// How far ahead of the loop large arrays are fetched (measured: 512 to 4,096 do as well, and
// Adam runs 8 % slower without).
inline constexpr size_t kPrefetchBytes = 1024;

// May point behind an array: a prefetch never faults.
template <class Update, typename T>
HWY_INLINE void PrefetchAhead(const Streams<T>& streams, size_t i) {
  const size_t ahead = i + kPrefetchBytes / sizeof(T);
  hwy::Prefetch(streams.parameter + ahead);
  hwy::Prefetch(streams.gradient + ahead);
  for (size_t s = 0; s < Update::kStates; ++s) hwy::Prefetch(streams.state[s] + ahead);
}

// One pass over all arrays. Copies of its arguments, so that no store can change them.
template <bool kPastCache, class Update, typename T>
HWY_NOINLINE void SweepStreams(const Update update, const Streams<T> streams) {
  const hn::ScalableTag<T> d;
  constexpr Access kAccess = kPastCache ? Access::kPastCache : Access::kCached;
  const size_t lanes = hn::Lanes(d);
  const size_t line = std::max(lanes, kOptimAlignment / sizeof(T));
  size_t i = 0;
  for (; i + line <= streams.size; i += line) {
    if constexpr (kPastCache) PrefetchAhead<Update>(streams, i);
    for (size_t j = 0; j < line; j += lanes) {
      UpdateVector<kAccess>(d, update, streams, i + j, lanes);
    }
  }
  for (; i + lanes <= streams.size; i += lanes)
    UpdateVector<Access::kCached>(d, update, streams, i, lanes);
  if (i < streams.size) UpdateVector<Access::kSome>(d, update, streams, i, streams.size - i);
}

// A gradient scaled, then clamped to +-limit; a NaN stays one.
template <class D, class V, typename T = hn::TFromD<D>>
HWY_INLINE V Prepared(D d, V gradient, T factor, T limit) {
  const V most = hn::Set(d, limit);
  gradient = hn::Mul(gradient, hn::Set(d, factor));
  const auto beyond = hn::Gt(hn::Abs(gradient), most);
  return hn::IfThenElse(beyond, hn::CopySign(most, gradient), gradient);
}

// numbers[i] = from[i] * scale clamped to +-limit, for i < size. `numbers` is padded to vectors.
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

// Rounds `numbers` (padded to vectors) to bf16, up or down at random.
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

// Copies 16-bit elements to `to`, past the caches if asked. Both aligned.
HWY_INLINE void PutElements(const uint16_t* from, size_t size, bool past_cache, uint16_t* to) {
  const hn::ScalableTag<uint16_t> d;
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  if (past_cache) {
    for (; i + lanes <= size; i += lanes) hn::Stream(hn::Load(d, from + i), d, to + i);
  }
  std::memcpy(to + i, from + i, (size - i) * sizeof(uint16_t));
}

// As much as stays in the first-level cache, in padded arrays.
template <typename T>
struct Scratch {
  HWY_ALIGN T gradient[kOptimPartElements];
  HWY_ALIGN T parameter[kOptimPartElements];
  HWY_ALIGN uint16_t rounded[kOptimPartElements];
};

// numbers -> rounded, which is padded too.
template <typename P>
HWY_INLINE void RoundToNearest(const float* numbers, size_t size, P* rounded) {
  const hn::ScalableTag<float> d;
  for (size_t i = 0; i < size; i += hn::Lanes(d))
    StoreFloats(d, hn::Load(d, numbers + i), rounded + i);
}

// One part of a parameter that is stored in 16 bits: `part` has the state and the gradient.
template <typename P, class Update>
HWY_INLINE void SweepNarrow(const Update& update, const OptimBatch& batch,
                            const OptimArrays& arrays, size_t at, Streams<float> part,
                            bool past_cache, Scratch<float>& scratch) {
  FetchNumbers(static_cast<const P*>(arrays.parameter) + at, part.size, 1,
               std::numeric_limits<double>::infinity(), scratch.parameter);
  part.parameter = part.next = scratch.parameter;
  SweepStreams<false>(update, part);
  if (std::is_same_v<P, BFloat16> && batch.stochastic_rounding) {
    const uint64_t index = (arrays.first_element + at) / kOptimPartElements;
    RoundAtRandom(scratch.parameter, part.size,
                  RoundingKey(arrays.rounding_seed, batch.step, index),
                  reinterpret_cast<BFloat16*>(scratch.rounded));
  } else {
    RoundToNearest(scratch.parameter, part.size, reinterpret_cast<P*>(scratch.rounded));
  }
  PutElements(scratch.rounded, part.size, past_cache, static_cast<uint16_t*>(arrays.next) + at);
}

// One array by parts that stay in the first-level cache, for what the direct pass cannot do:
// numbers that are stored in 16 bits, and limits.
template <typename P, class Update, typename T>
HWY_NOINLINE void SweepParts(const Update& update, const OptimBatch& batch,
                             const OptimArrays& arrays, const Streams<T>& streams,
                             bool past_cache) {
  Scratch<T> scratch;
  const auto* gradient = static_cast<const P*>(arrays.gradient);
  for (size_t at = 0; at < arrays.size; at += kOptimPartElements) {
    Streams<T> part = streams;
    part.size = std::min(kOptimPartElements, arrays.size - at);
    FetchNumbers(gradient + at, part.size, batch.gradient_scale, batch.gradient_limit,
                 scratch.gradient);
    part.gradient = scratch.gradient;
    for (size_t s = 0; s < Update::kStates; ++s) part.state[s] += at;
    if constexpr (std::is_same_v<P, T>) {
      part.parameter = static_cast<const T*>(arrays.parameter) + at;
      part.next = static_cast<T*>(arrays.next) + at;
      past_cache ? SweepStreams<true>(update, part) : SweepStreams<false>(update, part);
    } else {
      SweepNarrow<P>(update, batch, arrays, at, part, past_cache, scratch);
    }
  }
}

template <typename P, class Update, typename T = typename Update::Number>
HWY_INLINE void SweepArrays(const Update& update, const GradientTerms& terms,
                            const OptimBatch& batch, const OptimArrays& arrays, bool past_cache) {
  const T sign = terms.maximize ? T{-1} : T{1};
  Streams<T> streams = {};
  for (size_t s = 0; s < Update::kStates; ++s) streams.state[s] = static_cast<T*>(arrays.state[s]);
  streams.size = arrays.size;
  streams.weight_decay = static_cast<T>(terms.weight_decay);
  if (std::is_same_v<P, T> && batch.gradient_limit == std::numeric_limits<double>::infinity()) {
    streams.parameter = static_cast<const T*>(arrays.parameter);
    streams.next = static_cast<T*>(arrays.next);
    streams.gradient = static_cast<const T*>(arrays.gradient);
    streams.factor = sign * static_cast<T>(batch.gradient_scale);
    past_cache ? SweepStreams<true>(update, streams) : SweepStreams<false>(update, streams);
  } else {
    streams.factor = sign;
    SweepParts<P>(update, batch, arrays, streams, past_cache);
  }
}

// One array's lines in a row, which is what the hardware's own prefetching follows.
HWY_INLINE void PrefetchLines(const void* from, size_t bytes) {
  const auto* first = static_cast<const char*>(from);
  for (size_t at = 0; at < bytes; at += kOptimAlignment) hwy::Prefetch(first + at);
}

// Brings the first lines of arrays that come later: of short ones, all. Those that are only
// written too, unless they are written past the caches: the store would wait for them.
template <typename P, class Update, typename T = typename Update::Number>
HWY_INLINE void PrefetchStart(const OptimArrays& arrays, bool past_cache) {
  const size_t bytes = std::min(arrays.size * sizeof(P), kPrefetchBytes);
  PrefetchLines(arrays.parameter, bytes);
  if (!past_cache) PrefetchLines(arrays.next, bytes);
  PrefetchLines(arrays.gradient, bytes);
  const size_t state_bytes = std::min(arrays.size * sizeof(T), kPrefetchBytes);
  for (size_t s = 0; s < Update::kStates; ++s) PrefetchLines(arrays.state[s], state_bytes);
}

// How many arrays ahead of the loop they are fetched.
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
  // Streamed stores are weakly ordered: whoever publishes `next` must not overtake them.
  if (large) hwy::FlushStream();
}

// All arrays of a batch, whose type has Update's Number as its state.
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

// Calls f with a number of the type in which a batch of `type` is computed.
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
