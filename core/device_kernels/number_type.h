#pragma once

// The element types of tensors as kernels of devices name them.

#include "core/tensor/dtype.h"
#include "kernels/cuda/operators.h"

namespace psd {

inline kernels::cuda::NumberType NumberTypeOf(DType dtype) {
  using kernels::cuda::NumberType;
  switch (dtype) {
    case DType::kF32:
      return NumberType::kF32;
    case DType::kF64:
      return NumberType::kF64;
    case DType::kI64:
      return NumberType::kI64;
    case DType::kI32:
      return NumberType::kI32;
    case DType::kU8:
      return NumberType::kU8;
    case DType::kBool:
      return NumberType::kBool;
    case DType::kF16:
      return NumberType::kF16;
    case DType::kBF16:
      return NumberType::kBF16;
  }
  return NumberType::kF32;  // dtypes have been checked
}

}  // namespace psd
