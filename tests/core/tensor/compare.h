#pragma once

// Comparisons of tensors, on the host or on a device. Thread-safe.

#include "core/tensor/tensor.h"

namespace psd::ops {

// Whether both have the same shape, the same dtype and the same bits in every element. Undefined
// tensors equal each other.
bool Equal(const Tensor& a, const Tensor& b);

// Whether both have the same shape and dtype, and |a - b| <= absolute + relative * |b| in every
// element. NaN is close to NaN, and an infinity to itself.
bool AllClose(const Tensor& a, const Tensor& b, double relative = 1e-5, double absolute = 1e-8);

}  // namespace psd::ops
