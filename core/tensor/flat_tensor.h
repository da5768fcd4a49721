#pragma once

// A tensor as plain pointers, for code that processes thousands of tensors.

#include <cstddef>

#include "core/tensor/dtype.h"
#include "core/tensor/shape.h"
#include "core/tensor/tensor.h"

namespace psd {

// Refers to a shape and to elements in row-major order on a CPU. It owns neither; both must outlive
// it.
struct FlatTensor {
  const Shape* shape = nullptr;
  const std::byte* data = nullptr;
  size_t bytes = 0;
  DType dtype = DType::kF32;
};

// The result is valid as long as `tensor` lives. Requires: `tensor` is contiguous and on a CPU.
inline FlatTensor Flat(const Tensor& tensor) {
  return {&tensor.shape(), tensor.raw_data(), tensor.NumBytes(), tensor.dtype()};
}

}  // namespace psd
