#pragma once

// A tensor as plain pointers, for code that processes thousands of tensors.

#include <cstddef>

#include "core/base/buffer.h"
#include "core/tensor/dtype.h"
#include "core/tensor/shape.h"
#include "core/tensor/tensor.h"

namespace psd {

// Refers to a shape and to elements in row-major order, which may be on a device. It owns neither;
// both must outlive it.
struct FlatTensor {
  const Shape* shape = nullptr;
  const std::byte* data = nullptr;  // an address of the device if they are there
  size_t bytes = 0;
  DType dtype = DType::kF32;
  const Block* block = nullptr;  // the block that contains the elements; null for other heap memory
};

// The result is valid as long as `tensor` lives. Requires: `tensor` is contiguous and OnHost().
inline FlatTensor Flat(const Tensor& tensor) {
  return {&tensor.shape(), tensor.raw_data(), tensor.NumBytes(), tensor.dtype(), tensor.block()};
}

}  // namespace psd
