#pragma once

// The random bits of stochastic rounding. They depend only on seed, step and element, so that they
// are the same for every vector width and every way of splitting the work.

#include <cstdint>

#include "kernels/host_device.h"
#include "kernels/optim/arrays.h"

namespace psd::kernels {

// The finalizer of SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number
// generators", OOPSLA 2014).
PSD_HOST_DEVICE inline uint64_t Mix64(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// Returns the key of the random bits for the elements of one part: kOptimPartElements elements from
// index part * kOptimPartElements on.
PSD_HOST_DEVICE inline uint64_t RoundingKey(uint64_t seed, int64_t step, uint64_t part) {
  const uint64_t golden = 0x9e3779b97f4a7c15u;
  return Mix64(Mix64(Mix64(seed + golden) + static_cast<uint64_t>(step)) + part);
}

// Returns 32 random bits for element `i` of the part: Wellons' hash "lowbias32", into which both
// halves of the key are mixed.
PSD_HOST_DEVICE inline uint32_t RoundingBits(uint64_t key, uint32_t i) {
  uint32_t x = i + static_cast<uint32_t>(key);
  x = (x ^ (x >> 16)) * 0x7feb352du;
  x ^= static_cast<uint32_t>(key >> 32);
  x = (x ^ (x >> 15)) * 0x846ca68bu;
  return x ^ (x >> 16);
}

}  // namespace psd::kernels
