#pragma once

// Between dtypes, and comparisons for tests. Pure functions; thread-safe.

#include "absl/status/statusor.h"
#include "core/tensor/tensor.h"

namespace psd::ops {

// Each element converted: to integers toward zero and saturating (NaN: 0), between integers
// wrapping around, to bool "not zero", to f16 and bf16 to nearest even. A contiguous result; `x`
// itself if it has that dtype and is contiguous.
// Errors: INVALID_ARGUMENT for an undefined tensor; RESOURCE_EXHAUSTED.
absl::StatusOr<Tensor> Cast(const Tensor& x, DType dtype, Allocator* allocator = nullptr);

// Same shape, same dtype, same bits in every element. Undefined tensors equal each other.
bool Equal(const Tensor& a, const Tensor& b);

// Same shape and dtype, and |a - b| <= absolute + relative * |b| in every element; NaN is close to
// NaN, an infinity to itself.
bool AllClose(const Tensor& a, const Tensor& b, double relative = 1e-5, double absolute = 1e-8);

}  // namespace psd::ops
