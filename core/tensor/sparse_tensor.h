#pragma once

// A sparse tensor: coordinates and what stands there (PyTorch's COO layout). Where coordinates
// repeat, the values add up. Gradients of rows are of this kind.

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

inline constexpr int64_t kMaxSparseEntries = int64_t{1} << 31;

// A value: copies share the elements. Immutable; thread-compatible.
//
// The first S axes of the shape are sparse, the others dense:
//   indices  i64 [S, n]: column i is the coordinate of entry i
//   values   [n, the dense extents]
class SparseTensor {
 public:
  // No entries of an empty shape.
  SparseTensor() = default;

  // Errors: INVALID_ARGUMENT naming shapes, dtypes, or the first coordinate that is out of range;
  // RESOURCE_EXHAUSTED where a tensor with strides must be copied.
  static absl::StatusOr<SparseTensor> Create(const Shape& shape, const Tensor& indices,
                                             const Tensor& values);

  const Shape& shape() const { return shape_; }
  // Contiguous both.
  const Tensor& indices() const { return indices_; }
  const Tensor& values() const { return values_; }
  DType dtype() const { return values_.dtype(); }
  int sparse_axes() const { return static_cast<int>(indices_.shape()[0]); }
  int64_t NumEntries() const { return indices_.shape()[1]; }
  size_t NumBytes() const { return indices_.NumBytes() + values_.NumBytes(); }

  // Entries in ascending order of their coordinates, none twice: repeated ones are added in the
  // order in which they stand here.
  // Errors: INVALID_ARGUMENT for other dtypes than f32 and f64; RESOURCE_EXHAUSTED.
  absl::StatusOr<SparseTensor> Coalesced() const;
  // Errors: as Coalesced.
  absl::StatusOr<Tensor> ToDense() const;

  // "sparse f32[1000, 64] of 12 entries".
  std::string ToString() const;

 private:
  SparseTensor(const Shape& shape, Tensor indices, Tensor values)
      : shape_(shape), indices_(std::move(indices)), values_(std::move(values)) {}

  // The coordinates as row numbers of the dense part.
  std::vector<int64_t> RowNumbers() const;

  Shape shape_{0};
  Tensor indices_ = Tensor::Of<int64_t>({1, 0}, {});
  Tensor values_ = Tensor::Of<float>({0}, {});
};

// The sum of all `parts`, as one tensor with all their entries.
// Errors: INVALID_ARGUMENT for no part, or other shapes, dtypes or sparse axes than the first's.
absl::StatusOr<SparseTensor> ConcatSparse(absl::Span<const SparseTensor> parts);

}  // namespace psd
