#pragma once

// Random numbers from a counter-based generator, Philox 4x32-10 (Salmon, Moraes, Dror, Shaw,
// "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
//
// Element i depends only on the seed and on i, so results are the same on every machine and however
// the work is divided. Thread-safe: no state.

#include <array>
#include <cstddef>
#include <cstdint>

namespace psd::kernels {

// Returns the 128 random bits of block `counter`.
std::array<uint32_t, 4> Philox(uint64_t seed, uint64_t counter);

// Sets out[i] to element first + i of the uniform random numbers in [low, high) for `seed`. If low
// equals high, all elements are low. Requires: low <= high; low, high and high - low are finite.
void FillUniform(uint64_t seed, uint64_t first, double low, double high, float* out, size_t count);
void FillUniform(uint64_t seed, uint64_t first, double low, double high, double* out, size_t count);

// As FillUniform, for normally distributed numbers. Each is the inverse of the normal distribution
// function (Wichura, "Algorithm AS 241", 1988) at a uniform random number.
void FillNormal(uint64_t seed, uint64_t first, double mean, double deviation, float* out,
                size_t count);
void FillNormal(uint64_t seed, uint64_t first, double mean, double deviation, double* out,
                size_t count);

}  // namespace psd::kernels
