#pragma once

// Tensors of random numbers. Thread-safe. Element i depends only on the seed and on i, so that the
// numbers are the same on every machine.
// Errors: INVALID_ARGUMENT for a dtype other than f32 and f64, and for parameters that are not
// finite or out of order; RESOURCE_EXHAUSTED.

#include "absl/status/statusor.h"
#include "core/tensor/tensor.h"

namespace psd::ops {

// Returns uniform random numbers in [low, high). If low equals high, all elements are low.
absl::StatusOr<Tensor> Uniform(const Shape& shape, double low, double high, uint64_t seed,
                               DType dtype = DType::kF32, Allocator* allocator = nullptr);

// Returns normally distributed random numbers with this mean and standard deviation (at least 0).
absl::StatusOr<Tensor> Normal(const Shape& shape, double mean, double deviation, uint64_t seed,
                              DType dtype = DType::kF32, Allocator* allocator = nullptr);

}  // namespace psd::ops
