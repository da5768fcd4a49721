#include "kernels/strided.h"

#include <cstring>

namespace psd::kernels {
namespace {

// Extents and strides of an array after simplification: axes of length one are dropped, and axes
// that are contiguous with the next one are joined with it.
struct Layout {
  int rank = 0;
  int64_t extents[kMaxStridedRank];
  int64_t strides[kMaxStridedRank];
};

Layout Simplify(const int64_t* extents, const int64_t* strides, int rank) {
  Layout out;
  for (int axis = 0; axis < rank; ++axis) {
    if (extents[axis] == 1) continue;
    const int last = out.rank - 1;
    if (out.rank > 0 && out.strides[last] == extents[axis] * strides[axis]) {
      out.extents[last] *= extents[axis];
      out.strides[last] = strides[axis];
      continue;
    }
    out.extents[out.rank] = extents[axis];
    out.strides[out.rank++] = strides[axis];
  }
  return out;
}

template <typename T>
void CopyRow(const T* from, int64_t stride, int64_t count, T* to) {
  if (stride == 1) {
    std::memcpy(to, from, static_cast<size_t>(count) * sizeof(T));
    return;
  }
  for (int64_t i = 0; i < count; ++i) to[i] = from[i * stride];
}

// Copies two axes of which the outer one is dense in memory. It works in tiles, so that each cache
// line is read once.
template <typename T>
void CopyTransposed(const T* from, int64_t rows, int64_t cols, int64_t col_stride, T* to) {
  constexpr int64_t kTile = 32;
  for (int64_t row0 = 0; row0 < rows; row0 += kTile) {
    const int64_t row1 = row0 + kTile < rows ? row0 + kTile : rows;
    for (int64_t col0 = 0; col0 < cols; col0 += kTile) {
      const int64_t col1 = col0 + kTile < cols ? col0 + kTile : cols;
      for (int64_t row = row0; row < row1; ++row)
        for (int64_t col = col0; col < col1; ++col)
          to[row * cols + col] = from[row + col * col_stride];
    }
  }
}

template <typename T>
void CopyPlane(const T* from, const int64_t* extents, const int64_t* strides, T* to) {
  if (strides[0] == 1) return CopyTransposed(from, extents[0], extents[1], strides[1], to);
  for (int64_t row = 0; row < extents[0]; ++row)
    CopyRow(from + row * strides[0], strides[1], extents[1], to + row * extents[1]);
}

template <typename T>
void Copy(const T* from, const Layout& layout, T* to) {
  if (layout.rank == 0) {
    *to = *from;
    return;
  }
  if (layout.rank == 1) return CopyRow(from, layout.strides[0], layout.extents[0], to);
  const int outer = layout.rank - 2;
  const int64_t plane = layout.extents[outer] * layout.extents[outer + 1];
  int64_t index[kMaxStridedRank] = {};
  while (true) {
    CopyPlane(from, layout.extents + outer, layout.strides + outer, to);
    to += plane;
    int axis = outer - 1;
    for (; axis >= 0; --axis) {
      if (++index[axis] < layout.extents[axis]) {
        from += layout.strides[axis];
        break;
      }
      from -= (layout.extents[axis] - 1) * layout.strides[axis];
      index[axis] = 0;
    }
    if (axis < 0) return;
  }
}

template <typename T>
void CopyAs(const std::byte* from, const Layout& layout, std::byte* to) {
  Copy(reinterpret_cast<const T*>(from), layout, reinterpret_cast<T*>(to));
}

}  // namespace

void StridedCopy(const std::byte* from, const int64_t* extents, const int64_t* strides, int rank,
                 size_t item_bytes, std::byte* to) {
  for (int axis = 0; axis < rank; ++axis)
    if (extents[axis] == 0) return;
  const Layout layout = Simplify(extents, strides, rank);
  switch (item_bytes) {
    case 1:
      return CopyAs<uint8_t>(from, layout, to);
    case 2:
      return CopyAs<uint16_t>(from, layout, to);
    case 4:
      return CopyAs<uint32_t>(from, layout, to);
    case 8:
      return CopyAs<uint64_t>(from, layout, to);
  }
}

}  // namespace psd::kernels
