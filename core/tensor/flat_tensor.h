#pragma once

// A tensor as plain pointers, for code that goes over thousands of them.

#include <cstddef>

#include "core/tensor/dtype.h"
#include "core/tensor/shape.h"
#include "core/tensor/tensor.h"

namespace psd {

// Elements in row-major order, on a CPU. They and the shape are somebody else's, who keeps them.
struct FlatTensor {
  const Shape* shape = nullptr;
  const std::byte* data = nullptr;
  size_t bytes = 0;
  DType dtype = DType::kF32;
};

// Lives as long as `tensor`. Requires: it is contiguous and on a CPU.
inline FlatTensor Flat(const Tensor& tensor) {
  return {&tensor.shape(), tensor.raw_data(), tensor.NumBytes(), tensor.dtype()};
}

}  // namespace psd
