#pragma once

// Numbers of the wire format of values. They never change.

#include <cstddef>
#include <cstdint>

namespace psd::rref {

enum class ValueKind : uint8_t {
  kNone = 1,
  kBool = 2,
  kInt = 3,
  kDouble = 4,
  kString = 5,
  kTensor = 6,
  kRRef = 7,
  kList = 8,
  kMap = 9,
  kSparse = 10,
};

// Tensors of at most this many bytes share the first buffer: a copy of so little costs less than
// a buffer of its own on its way through the carriers.
inline constexpr size_t kSmallTensorBytes = size_t{16} << 10;
// Where each of them starts there: a multiple of this.
inline constexpr size_t kSmallTensorAlignment = 64;

// A sparse tensor travels as three: its extents (i64 [rank]), indices and values.
inline constexpr size_t kTensorsPerSparse = 3;

inline constexpr size_t kTextsPerForkRun = 2;  // beside the names of its RRefs
inline constexpr size_t kIdsPerRRef = 4;

}  // namespace psd::rref
