// Vectors of floats from and to 16-bit formats, by the rules of kernels/convert.h. Included from
// within foreach_target.h only.

#if defined(PSD_KERNELS_CONVERT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PSD_KERNELS_CONVERT_INL_H_
#undef PSD_KERNELS_CONVERT_INL_H_
#else
#define PSD_KERNELS_CONVERT_INL_H_
#endif

#include <cstdint>

#include "hwy/highway.h"
#include "kernels/convert.h"

// Whether the instruction set converts f16 itself: the packaged emulations lose infinity and NaN.
#undef PSD_HAS_F16C
#if (HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2) || HWY_ARCH_ARM_A64
#define PSD_HAS_F16C 1
#else
#define PSD_HAS_F16C 0
#endif

HWY_BEFORE_NAMESPACE();
namespace psd::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// As many elements as `d`, of floats, has lanes; from any address.
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
  // Moves the exponent to float's bias, and makes subnormals normal.
  const auto finite = hn::Mul(hn::BitCast(d, magnitude), hn::Set(d, 0x1p112f));
  const auto special = hn::BitCast(d, hn::Or(magnitude, hn::Set(d32, 0x7f800000u)));
  const auto is_special = hn::Ge(hn::BitCast(d, magnitude), hn::Set(d, 0x1p-112f * 0x1p16f));
  const auto sign = hn::ShiftLeft<16>(hn::And(bits, hn::Set(d32, 0x8000u)));
  return hn::Or(hn::IfThenElse(is_special, special, finite), hn::BitCast(d, sign));
#endif
}

}  // namespace psd::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
