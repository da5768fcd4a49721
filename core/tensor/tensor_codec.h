#pragma once

// Encodes the dtypes and shapes of tensors as packed columns of numbers for the wire. Consecutive
// tensors of the same dtype and shape form a run, which is encoded and checked once. The elements
// are sent separately.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/base/buffer.h"
#include "core/tensor/dtype.h"
#include "core/tensor/flat_tensor.h"
#include "core/tensor/shape.h"
#include "core/tensor/tensor.h"

namespace psd {

// `counts`, `dtypes` and `ranks` have one entry per run. `dims` has the extents of all runs, one
// after the other.
struct TensorColumns {
  std::vector<uint32_t> counts;  // the number of tensors in the run
  std::vector<uint32_t> dtypes;
  std::vector<uint32_t> ranks;
  std::vector<int64_t> dims;
};

// Checks that all `tensors` can be sent.
// Errors: INVALID_ARGUMENT for an undefined tensor, naming its number.
absl::Status CheckSendable(absl::Span<const Tensor* const> tensors);

// Appends the runs of `tensors` to `columns`.
void EncodeRuns(absl::Span<const FlatTensor> tensors, TensorColumns* columns);

// The shape and dtype of a tensor, as the columns give them.
struct TensorSpec {
  Shape shape;
  DType dtype = DType::kF32;
  size_t bytes = 0;  // the size of its elements
};
struct TensorRun {
  TensorSpec spec;
  size_t count = 0;  // at least 1
};
// Returns the runs that the columns describe, which must be of `tensors` tensors in all. The
// columns come from outside, so everything about them is checked.
// Errors: INVALID_ARGUMENT for counts that disagree, an unknown dtype, too many axes, and an extent
// that is negative or overflows. Errors in a run name the number of its first tensor.
absl::StatusOr<std::vector<TensorRun>> DecodeRuns(const TensorColumns& columns, size_t tensors);

// Returns a tensor over `bytes`; see Tensor::FromBuffer.
// Errors: INVALID_ARGUMENT if the tensor needs another number of bytes, or a bool is neither 0 nor
// 1; RESOURCE_EXHAUSTED.
absl::StatusOr<Tensor> DecodeTensor(const TensorSpec& spec, Buffer bytes);
// Appends the `count` tensors of a run over `bytes`, each starting `step` bytes behind the previous
// one; see Tensor::CutRun. Errors: those of DecodeTensor; `tensors` then ends with the tensor
// before the wrong one. Requires: the bytes end with the last tensor.
absl::Status DecodeTensors(const TensorSpec& spec, const Buffer& bytes, size_t step, size_t count,
                           std::vector<Tensor>* tensors);

}  // namespace psd
