#pragma once

// Random numbers from a counter-based generator, Philox 4x32-10 (Salmon, Moraes, Dror, Shaw,
// "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
//
// Element i depends on the seed and on i only, so that results are the same on every machine and
// for every way of splitting the work. Thread-safe: no state.

#include <array>
#include <cstddef>
#include <cstdint>

namespace psd::kernels {

// The 128 random bits of block `counter`.
std::array<uint32_t, 4> Philox(uint64_t seed, uint64_t counter);

// out[i] = element first + i of the uniform numbers in [low, high) of `seed`.
// Requires: low <= high, both finite, and their difference too.
void FillUniform(uint64_t seed, uint64_t first, double low, double high, float* out, size_t count);
void FillUniform(uint64_t seed, uint64_t first, double low, double high, double* out, size_t count);

// The same for normal numbers: the inverse of the normal distribution function (Wichura,
// "Algorithm AS 241", 1988) at a uniform number.
void FillNormal(uint64_t seed, uint64_t first, double mean, double deviation, float* out,
                size_t count);
void FillNormal(uint64_t seed, uint64_t first, double mean, double deviation, double* out,
                size_t count);

}  // namespace psd::kernels
