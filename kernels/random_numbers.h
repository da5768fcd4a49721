#pragma once

// The arithmetic of kernels/random.h, which the CPU and GPUs share.
//
// The results have the same bits on every machine: users are built with -ffp-contract=off or
// -fmad=false, and only functions are called that IEEE 754 rounds exactly.

#include <math.h>

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "kernels/host_device.h"

namespace psd::kernels {

// 128 random bits.
struct PhiloxBlock {
  uint32_t words[4];
};
// Returns the bits of block `counter`.
PSD_HOST_DEVICE inline PhiloxBlock PhiloxBits(uint64_t seed, uint64_t counter) {
  PhiloxBlock block = {
      {static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), 0, 0}};
  uint32_t(&x)[4] = block.words;
  uint32_t key0 = static_cast<uint32_t>(seed);
  uint32_t key1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53} * x[0];
    const uint64_t product1 = uint64_t{0xCD9E8D57} * x[2];
    block = {{static_cast<uint32_t>(product1 >> 32) ^ x[1] ^ key0, static_cast<uint32_t>(product1),
              static_cast<uint32_t>(product0 >> 32) ^ x[3] ^ key1,
              static_cast<uint32_t>(product0)}};
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
  return block;
}

// Returns a uniform random number in (0, 1). The half that is added to its 52 random bits keeps it
// away from both ends.
PSD_HOST_DEVICE inline double UnitNumber(uint64_t seed, uint64_t element) {
  const PhiloxBlock block = PhiloxBits(seed, element / 2);
  const size_t half = (element % 2) * 2;
  const uint64_t bits = (uint64_t{block.words[half]} << 32 | block.words[half + 1]) >> 12;
  return (static_cast<double>(bits) + 0.5) * 0x1p-52;
}

// Returns the natural logarithm, as e * ln(2) + 2 * atanh((m - 1) / (m + 1)) for x = m * 2^e, where
// atanh is computed by its series.
PSD_HOST_DEVICE inline double PlainLog(double x) {
  int exponent = 0;
  double m = ::frexp(x, &exponent);
  if (m < 0.70710678118654752) {
    m *= 2;
    --exponent;
  }
  const double s = (m - 1) / (m + 1);
  double sum = 0;
  for (int power = 23; power >= 1; power -= 2) sum = sum * s * s + 1.0 / power;
  return 2 * s * sum + exponent * 0.69314718055994531;
}

PSD_HOST_DEVICE inline double Ratio(const double (&above)[8], const double (&below)[8], double r) {
  double numerator = above[7];
  double denominator = below[7];
  for (int i = 6; i >= 0; --i) {
    numerator = numerator * r + above[i];
    denominator = denominator * r + below[i];
  }
  return numerator / denominator;
}

// Returns the inverse of the normal distribution function at p, by routine PPND16 of AS 241.
// Requires: 0 < p < 1.
PSD_HOST_DEVICE inline double InverseNormal(double p) {
  constexpr double kA[8] = {3.3871328727963666080e0,  1.3314166789178437745e+2,
                            1.9715909503065514427e+3, 1.3731693765509461125e+4,
                            4.5921953931549871457e+4, 6.7265770927008700853e+4,
                            3.3430575583588128105e+4, 2.5090809287301226727e+3};
  constexpr double kB[8] = {1.0,
                            4.2313330701600911252e+1,
                            6.8718700749205790830e+2,
                            5.3941960214247511077e+3,
                            2.1213794301586595867e+4,
                            3.9307895800092710610e+4,
                            2.8729085735721942674e+4,
                            5.2264952788528545610e+3};
  constexpr double kC[8] = {1.42343711074968357734e0,  4.63033784615654529590e0,
                            5.76949722146069140550e0,  3.64784832476320460504e0,
                            1.27045825245236838258e0,  2.41780725177450611770e-1,
                            2.27238449892691845833e-2, 7.74545014278341407640e-4};
  constexpr double kD[8] = {1.0,
                            2.05319162663775882187e0,
                            1.67638483018380384940e0,
                            6.89767334985100004550e-1,
                            1.48103976427480074590e-1,
                            1.51986665636164571966e-2,
                            5.47593808499534494600e-4,
                            1.05075007164441684324e-9};
  constexpr double kE[8] = {6.65790464350110377720e0,  5.46378491116411436990e0,
                            1.78482653991729133580e0,  2.96560571828504891230e-1,
                            2.65321895265761230930e-2, 1.24266094738807843860e-3,
                            2.71155556874348757815e-5, 2.01033439929228813265e-7};
  constexpr double kF[8] = {1.0,
                            5.99832206555887937690e-1,
                            1.36929880922735805310e-1,
                            1.48753612908506148525e-2,
                            7.86869131145613259100e-4,
                            1.84631831751005468180e-5,
                            1.42151175831644588870e-7,
                            2.04426310338993978564e-15};
  const double q = p - 0.5;
  if (::fabs(q) <= 0.425) return q * Ratio(kA, kB, 0.180625 - q * q);
  const double tail = ::sqrt(-PlainLog(q < 0 ? p : 1 - p));
  const double value = tail <= 5 ? Ratio(kC, kD, tail - 1.6) : Ratio(kE, kF, tail - 5);
  return q < 0 ? -value : value;
}

// Makes uniform random numbers in [low, high); see FillUniform.
template <typename T>
struct UniformNumbers {
  uint64_t seed;
  double low, high;
  T least, most;

  UniformNumbers(uint64_t seed, double low, double high)
      : seed(seed),
        low(low),
        high(high),
        least(static_cast<T>(low)),
        most(std::nextafter(static_cast<T>(high), least)) {}
  PSD_HOST_DEVICE T operator()(uint64_t element) const {
    const T value = static_cast<T>(low + (high - low) * UnitNumber(seed, element));
    return value < least ? least : value > most ? most : value;  // rounding may leave the range
  }
};

// Makes normally distributed random numbers; see FillNormal.
template <typename T>
struct NormalNumbers {
  uint64_t seed;
  double mean, deviation;

  PSD_HOST_DEVICE T operator()(uint64_t element) const {
    return static_cast<T>(mean + deviation * InverseNormal(UnitNumber(seed, element)));
  }
};

}  // namespace psd::kernels
