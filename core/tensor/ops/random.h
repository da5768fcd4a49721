#pragma once

// Tensors of random numbers. Thread-safe. Element i depends on the seed and on i alone: the same
// numbers on every machine and for every number of threads.
// Errors: INVALID_ARGUMENT for dtypes other than f32 and f64 and for parameters that are not
// finite or out of order; RESOURCE_EXHAUSTED.

#include "absl/status/statusor.h"
#include "core/tensor/tensor.h"

namespace psd::ops {

// Uniform in [low, high); all `low` if they are equal.
absl::StatusOr<Tensor> Uniform(const Shape& shape, double low, double high, uint64_t seed,
                               DType dtype = DType::kF32, Allocator* allocator = nullptr);

// Normal with that mean and standard deviation (>= 0).
absl::StatusOr<Tensor> Normal(const Shape& shape, double mean, double deviation, uint64_t seed,
                              DType dtype = DType::kF32, Allocator* allocator = nullptr);

// b such that weights uniform in [-b, b) keep the variance of activations through relu layers:
// sqrt(6 / fan_in) (He et al., "Delving deep into rectifiers", 2015). Requires: fan_in > 0.
double KaimingUniformBound(int64_t fan_in);

}  // namespace psd::ops
