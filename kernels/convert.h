#pragma once

// Conversions between number types, with a defined result for every input.
//
// Floating point to integer rounds toward zero and saturates at the ends of the range; NaN becomes
// 0. Conversions to f16 and bf16 round to float first and then to nearest, ties to even; a number
// that is too large becomes infinity, and NaN stays a (quiet) NaN.

#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "kernels/host_device.h"

namespace psd::kernels {

// The 16-bit storage formats f16 and bf16. They are structs so that their bits cannot be taken for
// integers.
struct Half {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};

PSD_HOST_DEVICE inline uint32_t FloatBits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

PSD_HOST_DEVICE inline float BitsFloat(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

PSD_HOST_DEVICE inline BFloat16 ToBFloat16(float value) {
  uint32_t bits = FloatBits(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>((bits >> 16) | 0x40u)};
  return {static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}

PSD_HOST_DEVICE inline float FromBFloat16(BFloat16 value) {
  return BitsFloat(static_cast<uint32_t>(value.bits) << 16);
}

PSD_HOST_DEVICE inline Half ToHalf(float value) {
  const uint32_t bits = FloatBits(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  auto half = [sign](uint32_t rest) { return Half{static_cast<uint16_t>(sign | rest)}; };
  if (magnitude > 0x7f800000u) return half(0x7e00u | ((magnitude >> 13) & 0x3ffu));
  if (magnitude >= 0x477ff000u) return half(0x7c00u);  // rounds past the largest half
  if (magnitude < 0x38800000u) {                       // subnormal: units of 2^-24
    // Adding 0.5 makes the float's own rounding drop all bits below 2^-24.
    return half(FloatBits(BitsFloat(magnitude) + 0.5f) - FloatBits(0.5f));
  }
  const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return half((rounded - 0x38000000u) >> 13);
}

PSD_HOST_DEVICE inline float FromHalf(Half value) {
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000u) << 16;
  const uint32_t exponent = (value.bits >> 10) & 0x1fu;
  const uint32_t mantissa = value.bits & 0x3ffu;
  if (exponent == 0x1f) return BitsFloat(sign | 0x7f800000u | (mantissa << 13));
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return sign != 0 ? -magnitude : magnitude;
  }
  return BitsFloat(sign | ((exponent + 112u) << 23) | (mantissa << 13));
}

namespace internal {

// Returns the number that a value represents: a float for a storage format, otherwise the value
// itself.
template <typename T>
PSD_HOST_DEVICE T Number(T value) {
  return value;
}
PSD_HOST_DEVICE inline float Number(Half value) {
  return FromHalf(value);
}
PSD_HOST_DEVICE inline float Number(BFloat16 value) {
  return FromBFloat16(value);
}

template <typename To, typename From>
PSD_HOST_DEVICE To FloatToInteger(From value) {
  if (value != value) return 0;
  // Both bounds are exact in floating point: -2^n, and 2^n, which is one more than the largest
  // number.
  constexpr From kLow = static_cast<From>(std::numeric_limits<To>::min());
  constexpr From kPast = static_cast<From>(std::numeric_limits<To>::max() / 2 + 1) * From{2};
  if (value <= kLow) return std::numeric_limits<To>::min();
  if (value >= kPast) return std::numeric_limits<To>::max();
  return static_cast<To>(value);
}

}  // namespace internal

// Converts `value` to To by the rules above. Integers that do not fit wrap around. To bool, zero
// becomes false and everything else true.
template <typename To, typename From>
PSD_HOST_DEVICE To Convert(From value) {
  auto number = internal::Number(value);
  if constexpr (std::is_same_v<To, Half>) {
    return ToHalf(static_cast<float>(number));
  } else if constexpr (std::is_same_v<To, BFloat16>) {
    return ToBFloat16(static_cast<float>(number));
  } else if constexpr (std::is_same_v<To, bool>) {
    return number != 0;
  } else if constexpr (std::is_integral_v<To> && std::is_floating_point_v<decltype(number)>) {
    return internal::FloatToInteger<To>(number);
  } else {
    return static_cast<To>(number);
  }
}

}  // namespace psd::kernels
