#pragma once

// How kernels access arrays. A kernel is a template over the type of its arrays: a GPU gets raw
// pointers, and the emulated device gets arrays that check each index.

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/host_device.h"

namespace psd::kernels::cuda {

template <typename T>
using RawArray = T*;

// Some elements that are one access, or as few as possible, when they are aligned.
template <typename T, size_t kSize>
struct alignas(kSize * sizeof(T) < 16 ? kSize * sizeof(T) : 16) Pack {
  T elements[kSize];
};

// Load and Store move kSize elements from index `first` on. Requires: the array is aligned to 16
// bytes and `first` is a multiple of kSize, unless kSize is 1. An array that checks indexes also
// has RequireAligned(first, alignment), which checks that.
template <size_t kSize, typename Array, typename T>
PSD_HOST_DEVICE void Load(const Array& array, size_t first, T (&elements)[kSize]) {
  array.RequireAligned(first, alignof(Pack<T, kSize>));
  for (size_t i = 0; i < kSize; ++i) elements[i] = array[first + i];
}
template <size_t kSize, typename T>
PSD_HOST_DEVICE void Load(const T* array, size_t first, T (&elements)[kSize]) {
  const auto pack = *reinterpret_cast<const Pack<T, kSize>*>(array + first);
  for (size_t i = 0; i < kSize; ++i) elements[i] = pack.elements[i];
}
template <size_t kSize, typename T>
PSD_HOST_DEVICE void Load(T* array, size_t first, T (&elements)[kSize]) {
  Load<kSize>(static_cast<const T*>(array), first, elements);
}

// As Load, but the array needs only the alignment of its type.
template <size_t kSize, typename Array, typename T>
PSD_HOST_DEVICE void LoadUnaligned(const Array& array, size_t first, T (&elements)[kSize]) {
  for (size_t i = 0; i < kSize; ++i) elements[i] = array[first + i];
}
template <size_t kSize, typename T>
PSD_HOST_DEVICE void LoadUnaligned(const T* array, size_t first, T (&elements)[kSize]) {
  if (reinterpret_cast<uintptr_t>(array) % alignof(Pack<T, kSize>) == 0) {
    Load<kSize>(array, first, elements);
  } else {
    for (size_t i = 0; i < kSize; ++i) elements[i] = array[first + i];
  }
}

#ifdef __CUDA_ARCH__
namespace internal {

// Stores whole words by as few instructions as possible. nvcc splits a vector store in C++ when it
// finds another store to merge with one of its elements; it leaves these as they are.
template <typename Elements>
__device__ void StoreWords(const Elements& elements, void* to) {
  uint32_t words[sizeof(Elements) / 4];
  memcpy(words, &elements, sizeof(Elements));
  auto* const first = static_cast<uint32_t*>(to);
  if constexpr (sizeof(Elements) == 8) {
    asm volatile("st.v2.b32 [%0], {%1, %2};" ::"l"(first), "r"(words[0]), "r"(words[1]) : "memory");
  } else {
    for (size_t i = 0; i < sizeof(Elements) / 4; i += 4) {
      asm volatile("st.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(first + i), "r"(words[i]),
                   "r"(words[i + 1]), "r"(words[i + 2]), "r"(words[i + 3])
                   : "memory");
    }
  }
}

}  // namespace internal
#endif

template <size_t kSize, typename Array, typename T>
PSD_HOST_DEVICE void Store(const Array& array, size_t first, const T (&elements)[kSize]) {
  array.RequireAligned(first, alignof(Pack<T, kSize>));
  for (size_t i = 0; i < kSize; ++i) array[first + i] = elements[i];
}
template <size_t kSize, typename T>
PSD_HOST_DEVICE void Store(T* array, size_t first, const T (&elements)[kSize]) {
#ifdef __CUDA_ARCH__
  if constexpr (sizeof(elements) >= 8) {
    internal::StoreWords(elements, array + first);
  } else {
    for (size_t i = 0; i < kSize; ++i) array[first + i] = elements[i];
  }
#else
  for (size_t i = 0; i < kSize; ++i) array[first + i] = elements[i];
#endif
}

}  // namespace psd::kernels::cuda
