#pragma once

// What tensors look like, as packed columns of numbers for the wire. Tensors that follow each other
// and are alike (of one dtype and shape) are a run: told once, checked once. Their elements travel
// beside the columns.

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

// One entry per run in `counts`, `dtypes` and `ranks`; the extents of all runs, one after the
// other, in `dims`.
struct TensorColumns {
  std::vector<uint32_t> counts;  // how many tensors
  std::vector<uint32_t> dtypes;
  std::vector<uint32_t> ranks;
  std::vector<int64_t> dims;
};

// Whether all `tensors` can be sent.
// Errors: INVALID_ARGUMENT for an undefined tensor or one that is not on a CPU, naming its number.
absl::Status CheckSendable(absl::Span<const Tensor* const> tensors);

// Appends `tensors` to `columns`.
void EncodeRuns(absl::Span<const FlatTensor> tensors, TensorColumns* columns);

// What the columns say of one tensor.
struct TensorSpec {
  Shape shape;
  DType dtype = DType::kF32;
  size_t bytes = 0;  // of its elements
};
struct TensorRun {
  TensorSpec spec;
  size_t count = 0;  // at least 1
};
// Of `tensors` tensors in all. Nothing about the columns is believed.
// Errors: INVALID_ARGUMENT for counts that disagree, an unknown dtype, too many axes, an extent
// that is negative or overflows; each names the number of the run's first tensor.
absl::StatusOr<std::vector<TensorRun>> DecodeRuns(const TensorColumns& columns, size_t tensors);

// A tensor over these bytes.
// Errors: INVALID_ARGUMENT for another number of bytes than the tensor needs, and for a bool that
// is neither 0 nor 1.
absl::StatusOr<Tensor> DecodeTensor(const TensorSpec& spec, Buffer bytes);
// Appends `count` tensors of a run over these bytes, one every `step` of them; see Tensor::CutRun.
// Errors: those of DecodeTensor; then `tensors` ends with the tensor before the wrong one.
// Requires: the bytes end with the last tensor.
absl::Status DecodeTensors(const TensorSpec& spec, const Buffer& bytes, size_t step, size_t count,
                           std::vector<Tensor>* tensors);

}  // namespace psd
