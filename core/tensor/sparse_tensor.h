#pragma once

// A sparse tensor: coordinates, and the values at these coordinates (PyTorch's COO layout). Where
// coordinates repeat, the values add up. Gradients of rows are sparse tensors.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/tensor/dtype.h"
#include "core/tensor/shape.h"
#include "core/tensor/tensor.h"

namespace psd {

// The most entries of one sparse tensor.
inline constexpr int64_t kMaxSparseEntries = int64_t{1} << 31;

// A value: copies share the elements. Immutable; thread-compatible.
//
// The first S axes of the shape are sparse, the others dense:
//   indices  i64 [S, n]: column i is the coordinate of entry i
//   values   [n, the dense extents]
class SparseTensor {
 public:
  // A tensor of shape [0] without entries.
  SparseTensor() = default;

  // Errors: INVALID_ARGUMENT for shapes or dtypes that do not fit, more than kMaxSparseEntries
  // entries, or a coordinate out of range (naming the first); RESOURCE_EXHAUSTED if there is no
  // memory for a contiguous copy of a strided tensor.
  static absl::StatusOr<SparseTensor> Create(const Shape& shape, const Tensor& indices,
                                             const Tensor& values);

  const Shape& shape() const { return shape_; }
  // Both are contiguous.
  const Tensor& indices() const { return indices_; }
  const Tensor& values() const { return values_; }
  DType dtype() const { return values_.dtype(); }
  int sparse_axes() const { return static_cast<int>(indices_.shape()[0]); }
  int64_t NumEntries() const { return indices_.shape()[1]; }
  size_t NumBytes() const { return indices_.NumBytes() + values_.NumBytes(); }

  // Returns an equal tensor whose coordinates are ascending and do not repeat. Values of a repeated
  // coordinate are added in the order of their entries.
  // Errors: INVALID_ARGUMENT for other dtypes than f32 and f64; RESOURCE_EXHAUSTED.
  absl::StatusOr<SparseTensor> Coalesced() const;
  // Returns an equal dense tensor. Errors: as Coalesced.
  absl::StatusOr<Tensor> ToDense() const;

  // For example "sparse f32[1000, 64] of 12 entries".
  std::string ToString() const;

 private:
  SparseTensor(const Shape& shape, Tensor indices, Tensor values)
      : shape_(shape), indices_(std::move(indices)), values_(std::move(values)) {}

  // Returns each entry's coordinate as one number, row-major over the sparse axes.
  std::vector<int64_t> RowNumbers() const;

  Shape shape_{0};
  Tensor indices_ = Tensor::Of<int64_t>({1, 0}, {});
  Tensor values_ = Tensor::Of<float>({0}, {});
};

// Returns the sum of all `parts` as one tensor that has all their entries.
// Errors: INVALID_ARGUMENT if there is no part, if shape, dtype or number of sparse axes differ
// between parts, or if they have more than kMaxSparseEntries entries; RESOURCE_EXHAUSTED.
absl::StatusOr<SparseTensor> ConcatSparse(absl::Span<const SparseTensor> parts);

}  // namespace psd
