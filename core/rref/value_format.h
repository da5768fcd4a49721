#pragma once

// Constants of the wire format of values. They never change.

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

// Tensors of at most this many bytes share the first buffer. Copying so few bytes costs less than
// sending a separate buffer through the carriers.
inline constexpr size_t kSmallTensorBytes = size_t{16} << 10;
// In the shared buffer each tensor starts at a multiple of this.
inline constexpr size_t kSmallTensorAlignment = 64;

// A sparse tensor travels as three tensors: its extents (i64 [rank]), indices and values.
inline constexpr size_t kTensorsPerSparse = 3;

inline constexpr size_t kTextsPerForkRun = 2;  // owner and parent; the names of its RRefs follow
inline constexpr size_t kIdsPerRRef = 4;       // incarnation and counter of value and fork

}  // namespace psd::rref
