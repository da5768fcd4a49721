#pragma once

// Which gradients travel together when replicas average their gradients through buffers. Pure.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "core/tensor/dtype.h"
#include "core/tensor/shape.h"

namespace psd {

// A parameter of which every replica has one, and whose gradients are averaged.
struct ReplicatedParameter {
  Shape shape;
  DType dtype = DType::kF32;  // a floating dtype
  bool requires_grad = true;  // if false, it has no gradient and takes no part
  // If true, each replica keeps its own gradient, as those of different experts of a mixture.
  bool expert = false;
};

// Parameters whose gradients are reduced at once.
struct BufferGroup {
  DType dtype = DType::kF32;
  std::vector<size_t> parameters;  // positions, in order
  int64_t elements = 0;            // of all of them
};

// Returns the groups in the order in which they are reduced. There is a buffer for each dtype, in
// the order in which the dtypes appear, of min(buffer_elements, elements of all its parameters)
// elements. The parameters of one dtype that take part are gathered in order. One that does not fit
// behind those gathered sends these off first. One that is larger than the buffer is reduced alone,
// and before those gathered. Frozen parameters and experts take no part, but count in the size of
// the buffer.
// Requires: buffer_elements > 0.
std::vector<BufferGroup> GroupForBuffers(absl::Span<const ReplicatedParameter> parameters,
                                         int64_t buffer_elements);

}  // namespace psd
