#pragma once

// Copies an array whose elements are in memory with strides into a row-major block.

#include <cstddef>
#include <cstdint>

namespace psd::kernels {

// The most axes that StridedCopy takes.
inline constexpr int kMaxStridedRank = 16;

// Copies the elements of a strided array to `to`, row-major and dense. `strides` are in elements
// and may be zero or negative. `item_bytes`, the size of an element, is 1, 2, 4 or 8.
// Requires: 0 <= rank <= kMaxStridedRank; extents not negative; no overlap of the two arrays.
void StridedCopy(const std::byte* from, const int64_t* extents, const int64_t* strides, int rank,
                 size_t item_bytes, std::byte* to);

}  // namespace psd::kernels
