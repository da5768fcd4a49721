// Loads and stores vectors of floats in 16-bit formats, by the rules of kernels/convert.h. Included
// from within foreach_target.h only.

#if defined(PSD_KERNELS_CONVERT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PSD_KERNELS_CONVERT_INL_H_
#undef PSD_KERNELS_CONVERT_INL_H_
#else
#define PSD_KERNELS_CONVERT_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/convert.h"

// Whether the instruction set has f16 conversions. Highway's emulations are not used, because those
// of the packaged version lose infinity and NaN.
#undef PSD_HAS_F16C
#if (HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2) || HWY_ARCH_ARM_A64
#define PSD_HAS_F16C 1
#else
#define PSD_HAS_F16C 0
#endif

HWY_BEFORE_NAMESPACE();
namespace psd::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Loads as many elements as `d`, a tag of float, has lanes. `from` needs no alignment.
template <class D>
HWY_INLINE hn::Vec<D> LoadFloats(D d, const float* from) {
  return hn::LoadU(d, from);
}

template <class D>
HWY_INLINE hn::Vec<D> LoadFloats(D d, const BFloat16* from) {
  const hn::Rebind<uint32_t, D> d32;
  const hn::Rebind<uint16_t, D> d16;
  const auto bits = hn::PromoteTo(d32, hn::LoadU(d16, &from->bits));
  return hn::BitCast(d, hn::ShiftLeft<16>(bits));
}

template <class D>
HWY_INLINE hn::Vec<D> LoadFloats(D d, const Half* from) {
  const hn::Rebind<uint16_t, D> d16;
#if PSD_HAS_F16C
  const hn::Rebind<hwy::float16_t, D> dh;
  return hn::PromoteTo(d, hn::BitCast(dh, hn::LoadU(d16, &from->bits)));
#else
  const hn::Rebind<uint32_t, D> d32;
  const auto bits = hn::PromoteTo(d32, hn::LoadU(d16, &from->bits));
  const auto magnitude = hn::ShiftLeft<13>(hn::And(bits, hn::Set(d32, 0x7fffu)));
  // The product moves the exponent to float's bias, and makes subnormals normal.
  const auto finite = hn::Mul(hn::BitCast(d, magnitude), hn::Set(d, 0x1p112f));
  const auto special = hn::BitCast(d, hn::Or(magnitude, hn::Set(d32, 0x7f800000u)));
  const auto is_special = hn::Ge(hn::BitCast(d, magnitude), hn::Set(d, 0x1p-112f * 0x1p16f));
  const auto sign = hn::ShiftLeft<16>(hn::And(bits, hn::Set(d32, 0x8000u)));
  return hn::Or(hn::IfThenElse(is_special, special, finite), hn::BitCast(d, sign));
#endif
}

// Returns the upper halves of `rounded`, which holds the bits of `v` plus a rounding term. Where
// `v` is NaN the result is a quiet NaN.
template <class D, class V, class VU>
HWY_INLINE hn::Vec<hn::Rebind<uint16_t, D>> BFloat16Bits(D, V v, VU rounded) {
  const hn::Rebind<uint32_t, D> d32;
  const hn::Rebind<uint16_t, D> d16;
  const auto quiet = hn::Or(hn::BitCast(d32, v), hn::Set(d32, 0x400000u));
  const auto number = hn::RebindMask(d32, hn::Eq(v, v));
  return hn::TruncateTo(d16, hn::ShiftRight<16>(hn::IfThenElse(number, rounded, quiet)));
}

// Rounds `v` to nearest and stores it at `to`, which is aligned for a vector of its type.
template <class D, class V>
HWY_INLINE void StoreFloats(D d, V v, BFloat16* to) {
  const hn::Rebind<uint32_t, D> d32;
  const hn::Rebind<uint16_t, D> d16;
  const auto bits = hn::BitCast(d32, v);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d32, 1u));
  const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(d32, 0x7fffu)));
  hn::Store(BFloat16Bits(d, v, rounded), d16, &to->bits);
}

template <class D, class V>
HWY_INLINE void StoreFloats(D d, V v, Half* to) {
#if PSD_HAS_F16C
  const hn::Rebind<hwy::float16_t, D> dh;
  const hn::Rebind<uint16_t, D> d16;
  hn::Store(hn::BitCast(d16, hn::DemoteTo(dh, v)), d16, &to->bits);
#else
  HWY_ALIGN float lanes[HWY_MAX_BYTES / sizeof(float)];
  hn::Store(v, d, lanes);
  for (size_t i = 0; i < hn::Lanes(d); ++i) to[i] = ToHalf(lanes[i]);
#endif
}

}  // namespace psd::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
