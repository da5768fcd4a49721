#pragma once

// The extents of a tensor, checked so that sizes in elements and in bytes never overflow.

#include <cstdint>
#include <initializer_list>
#include <string>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/tensor/dtype.h"

namespace psd {

// Shapes and strides with at most this many axes are stored inline, without an allocation.
inline constexpr int kInlineRank = 3;

// A list of non-negative extents, one for each axis. A scalar has none. A value; thread-compatible.
class Shape {
 public:
  static constexpr int kMaxRank = 16;

  Shape() = default;
  // For shapes that are constants in the code. Requires: Checked would accept the extents.
  Shape(std::initializer_list<int64_t> extents);

  // Errors: INVALID_ARGUMENT for a negative extent, more than kMaxRank extents, or if the product
  // of the non-zero extents times 8 bytes exceeds 2^62.
  static absl::StatusOr<Shape> Checked(absl::Span<const int64_t> extents);

  int rank() const { return static_cast<int>(extents_.size()); }
  int64_t operator[](int axis) const { return extents_[axis]; }
  absl::Span<const int64_t> extents() const { return extents_; }
  // The product of the extents; 1 for a scalar.
  int64_t NumElements() const {
    int64_t product = 1;
    for (int64_t extent : extents()) product *= extent;  // checked: never overflows
    return product;
  }
  // For example "[128, 784]", or "[]" for a scalar.
  std::string ToString() const;

  friend bool operator==(const Shape& a, const Shape& b) {
    const absl::Span<const int64_t> of_a = a.extents();
    const absl::Span<const int64_t> of_b = b.extents();
    if (of_a.size() != of_b.size()) return false;
    for (size_t axis = 0; axis < of_a.size(); ++axis)
      if (of_a[axis] != of_b[axis]) return false;
    return true;
  }
  friend bool operator!=(const Shape& a, const Shape& b) { return !(a == b); }

 private:
  absl::InlinedVector<int64_t, kInlineRank> extents_;
};

using Strides = absl::InlinedVector<int64_t, kInlineRank>;  // in elements

// Returns the strides of a dense row-major tensor of `shape`.
Strides ContiguousStrides(const Shape& shape);

// Returns the shape that both broadcast to, by NumPy's rules.
// Errors: INVALID_ARGUMENT naming both shapes.
absl::StatusOr<Shape> BroadcastShapes(const Shape& a, const Shape& b);

}  // namespace psd
