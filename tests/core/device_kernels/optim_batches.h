#pragma once

// Batches for tests of optimizers' kernels.

#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include "kernels/convert.h"
#include "kernels/optim/arrays.h"

namespace psd::testing {

using kernels::BFloat16;
using kernels::Half;
using kernels::OptimArrays;
using kernels::OptimBatch;
using kernels::OptimType;

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

template <typename P>
inline constexpr OptimType kType = std::is_same_v<P, double>     ? OptimType::kF64
                                   : std::is_same_v<P, Half>     ? OptimType::kF16
                                   : std::is_same_v<P, BFloat16> ? OptimType::kBF16
                                                                 : OptimType::kF32;

struct Run {
  int64_t step = 1;
  double scale = 1;
  double limit = kInfinity;
  bool stochastic_rounding = false;
  bool in_place = false;
};

template <typename P>
OptimBatch BatchOf(const std::vector<OptimArrays>& arrays, const Run& run) {
  OptimBatch batch;
  batch.type = kType<P>;
  batch.step = run.step;
  batch.arrays = arrays.data();
  batch.count = arrays.size();
  batch.gradient_scale = run.scale;
  batch.gradient_limit = run.limit;
  batch.stochastic_rounding = run.stochastic_rounding;
  return batch;
}

}  // namespace psd::testing
