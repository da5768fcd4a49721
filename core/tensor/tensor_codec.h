#pragma once

// Tensors as packed columns of numbers and one buffer of elements each, for the wire. The elements
// are shared, not copied, unless a tensor is not contiguous.

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/base/buffer.h"
#include "core/tensor/dtype.h"
#include "core/tensor/shape.h"
#include "core/tensor/tensor.h"

namespace psd {

// One entry per tensor in `dtypes` and `ranks`; the extents of all tensors, one after the other,
// in `dims`.
struct TensorColumns {
  std::vector<uint32_t> dtypes;
  std::vector<uint32_t> ranks;
  std::vector<int64_t> dims;
};

// Appends `tensors` to both. Only the elements that a tensor shows are sent, not all of the
// storage behind it.
// Errors: INVALID_ARGUMENT for an undefined tensor or one that is not on a CPU, naming its number;
// RESOURCE_EXHAUSTED for a copy. Then both are as they were.
absl::Status EncodeTensors(absl::Span<const Tensor> tensors, TensorColumns* columns,
                           std::vector<Buffer>* buffers);

// What the columns say of one tensor.
struct TensorSpec {
  Shape shape;
  DType dtype = DType::kF32;
  size_t bytes = 0;  // of its elements
};
// Nothing about the argument is believed.
// Errors: INVALID_ARGUMENT for counts that disagree, an unknown dtype, too many axes, an extent
// that is negative or overflows; each names the tensor's number.
absl::StatusOr<std::vector<TensorSpec>> DecodeSpecs(const TensorColumns& columns);

// The tensors of these specs, over these buffers, one for each.
// Errors: INVALID_ARGUMENT for a wrong number of buffers, one of another size than its tensor
// needs, and a bool that is neither 0 nor 1; each names the tensor's number.
absl::StatusOr<std::vector<Tensor>> DecodeTensors(std::vector<TensorSpec> specs,
                                                  std::vector<Buffer> buffers);

}  // namespace psd
