#pragma once

// Reduces equally long runs of numbers, one from each rank of a group, to one run.
//
// Every element is reduced in the order of the ranks, wherever it lies in its run: the result is
// (…((x0 op x1) op x2) …) / divisor. The bits are the same on every instruction set. Thread-safe:
// no state. No alignment is required.

#include <cstddef>
#include <cstdint>

#include "kernels/convert.h"

namespace psd::kernels {

enum class RankReduction {
  kSum,  // integers wrap around
  kMin,  // NaN if one of the numbers is NaN; of zeros of different sign, that of the lowest rank
  kMax,
};

// out[i] = the reduction of runs[0][i] … runs[ranks - 1][i]. `out` may be one of the runs, but must
// not overlap one otherwise. Requires: ranks >= 1; `divisor` is not 0.
void ReduceRanks(RankReduction op, const float* const* runs, size_t ranks, float divisor,
                 float* out, size_t count);
void ReduceRanks(RankReduction op, const double* const* runs, size_t ranks, double divisor,
                 double* out, size_t count);
// Computes with floats, and rounds the result once.
void ReduceRanks(RankReduction op, const Half* const* runs, size_t ranks, float divisor, Half* out,
                 size_t count);
void ReduceRanks(RankReduction op, const BFloat16* const* runs, size_t ranks, float divisor,
                 BFloat16* out, size_t count);
// Integers are not divided.
void ReduceRanks(RankReduction op, const int32_t* const* runs, size_t ranks, int32_t* out,
                 size_t count);
void ReduceRanks(RankReduction op, const int64_t* const* runs, size_t ranks, int64_t* out,
                 size_t count);

}  // namespace psd::kernels
