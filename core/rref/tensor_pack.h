#pragma once

// Packs tensors into columns and a few buffers, and unpacks them. Small tensors share the first
// buffer, and each other tensor has a buffer of its own. See value_format.h.

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/base/buffer.h"
#include "core/base/device.h"
#include "core/tensor/flat_tensor.h"
#include "core/tensor/tensor.h"
#include "core/tensor/tensor_codec.h"

namespace psd::rref {

// Fills `columns` and `buffers`, which must be empty. Large contiguous tensors are not copied.
// Tensors on devices are copied to the host, except those that are contiguous, larger than
// kSmallTensorBytes and on `stays_on`: their buffers are there.
// Errors: those of CheckSendable; RESOURCE_EXHAUSTED if there is no memory for a copy; those of the
// device.
absl::Status PackTensors(absl::Span<const Tensor* const> tensors, TensorColumns* columns,
                         std::vector<Buffer>* buffers, const Device* stays_on = nullptr);
// As above, for tensors whose elements `owner` keeps alive. Errors: RESOURCE_EXHAUSTED.
absl::Status PackFlatTensors(absl::Span<const FlatTensor> tensors,
                             const std::shared_ptr<const void>& owner, TensorColumns* columns,
                             std::vector<Buffer>* buffers);

// Returns `count` tensors, as slices of the buffers. Columns and buffers come from outside, so
// everything about them is checked.
// Errors: those of DecodeRuns and DecodeTensor, naming the number of the tensor; INVALID_ARGUMENT
// for buffers that are too few, too many, or of another size than the tensors need.
absl::StatusOr<std::vector<Tensor>> UnpackTensors(const TensorColumns& columns, size_t count,
                                                  absl::Span<const Buffer> buffers);

}  // namespace psd::rref
