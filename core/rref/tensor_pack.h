#pragma once

// Tensors <-> columns and few buffers: small tensors lie together in the first buffer, the others
// have one each. See value_format.h.

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/base/buffer.h"
#include "core/tensor/flat_tensor.h"
#include "core/tensor/tensor.h"
#include "core/tensor/tensor_codec.h"

namespace psd::rref {

// Appends to `columns` and `buffers`, which are empty. Large contiguous tensors are not copied.
// Errors: those of CheckSendable; RESOURCE_EXHAUSTED for a copy.
absl::Status PackTensors(absl::Span<const Tensor* const> tensors, TensorColumns* columns,
                         std::vector<Buffer>* buffers);
// The same for elements that `owner` keeps.
void PackFlatTensors(absl::Span<const FlatTensor> tensors, const std::shared_ptr<const void>& owner,
                     TensorColumns* columns, std::vector<Buffer>* buffers);

// `count` tensors, as slices of the buffers. Nothing about the columns and the buffers is believed.
// Errors: INVALID_ARGUMENT: those of DecodeRuns and DecodeTensor, naming the tensor's number;
// buffers that are too few, too many, or of another size than the tensors need.
absl::StatusOr<std::vector<Tensor>> UnpackTensors(const TensorColumns& columns, size_t count,
                                                  absl::Span<const Buffer> buffers);

}  // namespace psd::rref
