#include "kernels/rank_reduce.h"

#include <cstring>
#include <type_traits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/rank_reduce.cc"
#include "hwy/foreach_target.h"  // before highway.h
#include "hwy/highway.h"
#include "kernels/convert-inl.h"

HWY_BEFORE_NAMESPACE();
namespace psd::kernels {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

struct RankSum {
  template <class V>
  HWY_INLINE V operator()(V a, V b) const {
    return hn::Add(a, b);
  }
};
struct RankMin {
  template <class V>
  HWY_INLINE V operator()(V a, V b) const {
    return hn::IfThenElse(hn::Or(hn::Lt(b, a), hn::Not(hn::Eq(b, b))), b, a);
  }
};
struct RankMax {
  template <class V>
  HWY_INLINE V operator()(V a, V b) const {
    return hn::IfThenElse(hn::Or(hn::Lt(a, b), hn::Not(hn::Eq(b, b))), b, a);
  }
};

template <class D, typename T>
HWY_INLINE hn::Vec<D> LoadRun(D d, const T* from) {
  if constexpr (std::is_same_v<T, double>) {
    return hn::LoadU(d, from);
  } else {
    return LoadFloats(d, from);
  }
}

// Stores the first `count` lanes.
template <class D, typename T>
HWY_INLINE void StoreRun(D d, hn::Vec<D> v, T* to, size_t count) {
  HWY_ALIGN T lanes[HWY_MAX_BYTES / sizeof(T)];
  if constexpr (std::is_floating_point_v<T>) {
    hn::Store(v, d, lanes);
  } else {
    StoreFloats(d, v, lanes);
  }
  std::memcpy(to, lanes, count * sizeof(T));
}

// W is the type that is computed with, T the type in memory.
template <typename W, typename T, class F>
void ReduceBy(F f, const T* const* runs, size_t ranks, W divisor, T* out, size_t count) {
  const hn::ScalableTag<W> d;
  const size_t lanes = hn::Lanes(d);
  const auto by = hn::Set(d, divisor);
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    auto total = LoadRun(d, runs[0] + i);
    for (size_t rank = 1; rank < ranks; ++rank) total = f(total, LoadRun(d, runs[rank] + i));
    if (divisor != W{1}) total = hn::Div(total, by);
    StoreRun(d, total, out + i, lanes);
  }
  if (i == count) return;
  HWY_ALIGN T rest[HWY_MAX_BYTES / sizeof(T)] = {};
  const auto load_rest = [&](size_t rank) {
    std::memcpy(rest, runs[rank] + i, (count - i) * sizeof(T));
    return LoadRun(d, rest);
  };
  auto total = load_rest(0);
  for (size_t rank = 1; rank < ranks; ++rank) total = f(total, load_rest(rank));
  if (divisor != W{1}) total = hn::Div(total, by);
  StoreRun(d, total, out + i, count - i);
}

template <typename W, typename T>
void ReduceFloats(RankReduction op, const T* const* runs, size_t ranks, W divisor, T* out,
                  size_t count) {
  switch (op) {
    case RankReduction::kSum:
      return ReduceBy(RankSum(), runs, ranks, divisor, out, count);
    case RankReduction::kMin:
      return ReduceBy(RankMin(), runs, ranks, divisor, out, count);
    case RankReduction::kMax:
      return ReduceBy(RankMax(), runs, ranks, divisor, out, count);
  }
}

void ReduceF32(RankReduction op, const float* const* runs, size_t ranks, float divisor, float* out,
               size_t count) {
  ReduceFloats(op, runs, ranks, divisor, out, count);
}
void ReduceF64(RankReduction op, const double* const* runs, size_t ranks, double divisor,
               double* out, size_t count) {
  ReduceFloats(op, runs, ranks, divisor, out, count);
}
void ReduceF16(RankReduction op, const Half* const* runs, size_t ranks, float divisor, Half* out,
               size_t count) {
  ReduceFloats(op, runs, ranks, divisor, out, count);
}
void ReduceBF16(RankReduction op, const BFloat16* const* runs, size_t ranks, float divisor,
                BFloat16* out, size_t count) {
  ReduceFloats(op, runs, ranks, divisor, out, count);
}

}  // namespace HWY_NAMESPACE
}  // namespace psd::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace psd::kernels {

HWY_EXPORT(ReduceF32);
HWY_EXPORT(ReduceF64);
HWY_EXPORT(ReduceF16);
HWY_EXPORT(ReduceBF16);

namespace {

// The sum is unsigned, so that overflow is defined. Runs that came in messages are not aligned.
template <typename T>
void ReduceIntegers(RankReduction op, const T* const* runs, size_t ranks, T* out, size_t count) {
  using U = std::make_unsigned_t<T>;
  for (size_t i = 0; i < count; ++i) {
    T total, x;
    std::memcpy(&total, runs[0] + i, sizeof(T));
    for (size_t rank = 1; rank < ranks; ++rank) {
      std::memcpy(&x, runs[rank] + i, sizeof(T));
      if (op == RankReduction::kSum) {
        total = static_cast<T>(static_cast<U>(total) + static_cast<U>(x));
      } else if (op == RankReduction::kMin ? x < total : total < x) {
        total = x;
      }
    }
    out[i] = total;
  }
}

}  // namespace

void ReduceRanks(RankReduction op, const float* const* runs, size_t ranks, float divisor,
                 float* out, size_t count) {
  HWY_DYNAMIC_DISPATCH(ReduceF32)(op, runs, ranks, divisor, out, count);
}
void ReduceRanks(RankReduction op, const double* const* runs, size_t ranks, double divisor,
                 double* out, size_t count) {
  HWY_DYNAMIC_DISPATCH(ReduceF64)(op, runs, ranks, divisor, out, count);
}
void ReduceRanks(RankReduction op, const Half* const* runs, size_t ranks, float divisor, Half* out,
                 size_t count) {
  HWY_DYNAMIC_DISPATCH(ReduceF16)(op, runs, ranks, divisor, out, count);
}
void ReduceRanks(RankReduction op, const BFloat16* const* runs, size_t ranks, float divisor,
                 BFloat16* out, size_t count) {
  HWY_DYNAMIC_DISPATCH(ReduceBF16)(op, runs, ranks, divisor, out, count);
}
void ReduceRanks(RankReduction op, const int32_t* const* runs, size_t ranks, int32_t* out,
                 size_t count) {
  ReduceIntegers(op, runs, ranks, out, count);
}
void ReduceRanks(RankReduction op, const int64_t* const* runs, size_t ranks, int64_t* out,
                 size_t count) {
  ReduceIntegers(op, runs, ranks, out, count);
}

}  // namespace psd::kernels
#endif  // HWY_ONCE
