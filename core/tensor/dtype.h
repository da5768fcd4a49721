#pragma once

// Element types.

#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"

namespace psd {

// The numbers are part of the wire format and never change.
enum class DType : uint8_t {
  kF32 = 1,
  kF64 = 2,
  kI64 = 3,
  kI32 = 4,
  kU8 = 5,
  kBool = 6,  // one byte, 0 or 1
  kF16 = 7,   // IEEE half; for storage only: arithmetic operators refuse it
  kBF16 = 8,  // the upper half of a float; for storage only, like kF16
};

inline constexpr bool IsValidDType(uint64_t number) {
  return number >= 1 && number <= 8;
}

// Bytes per element.
inline constexpr size_t ItemSize(DType dtype) {
  switch (dtype) {
    case DType::kF64:
    case DType::kI64:
      return 8;
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kF16:
    case DType::kBF16:
      return 2;
    case DType::kU8:
    case DType::kBool:
      return 1;
  }
  return 0;
}

inline constexpr bool IsFloating(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF64 || dtype == DType::kF16 ||
         dtype == DType::kBF16;
}

// "f32", "f64", "i64", "i32", "u8", "bool", "f16", "bf16".
absl::string_view DTypeName(DType dtype);

template <typename T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::kF32;
};
template <>
struct DTypeOf<double> {
  static constexpr DType value = DType::kF64;
};
template <>
struct DTypeOf<int64_t> {
  static constexpr DType value = DType::kI64;
};
template <>
struct DTypeOf<int32_t> {
  static constexpr DType value = DType::kI32;
};
template <>
struct DTypeOf<uint8_t> {
  static constexpr DType value = DType::kU8;
};
template <>
struct DTypeOf<bool> {
  static constexpr DType value = DType::kBool;
};

}  // namespace psd
