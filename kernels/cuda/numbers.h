#pragma once

// Arithmetic that gives the same bits on a GPU and on the host, except those of NaN. All of these
// are rounded correctly on both, so results are equal as long as the compilers fuse nothing by
// themselves: compile with -fmad=false (nvcc) and -ffp-contract=off (host).

#include <math.h>

#include "kernels/host_device.h"

namespace psd::kernels::cuda {

// Returns a * b + c, rounded once, as the CPU's kernels compute it where the instruction set has
// fused multiply-adds.
PSD_HOST_DEVICE inline float MulAdd(float a, float b, float c) {
  return ::fmaf(a, b, c);
}
PSD_HOST_DEVICE inline double MulAdd(double a, double b, double c) {
  return ::fma(a, b, c);
}

PSD_HOST_DEVICE inline float SquareRoot(float x) {
  return ::sqrtf(x);
}
PSD_HOST_DEVICE inline double SquareRoot(double x) {
  return ::sqrt(x);
}

PSD_HOST_DEVICE inline float Magnitude(float x) {
  return ::fabsf(x);
}
PSD_HOST_DEVICE inline double Magnitude(double x) {
  return ::fabs(x);
}

// Returns a number with the magnitude of `x` and the sign of `sign`.
PSD_HOST_DEVICE inline float WithSign(float x, float sign) {
  return ::copysignf(x, sign);
}
PSD_HOST_DEVICE inline double WithSign(double x, double sign) {
  return ::copysign(x, sign);
}

template <typename T>
PSD_HOST_DEVICE bool IsNan(T x) {
  return x != x;
}

// Returns the larger of both, or NaN if either is NaN.
template <typename T>
PSD_HOST_DEVICE T MaxOrNan(T a, T b) {
  return IsNan(a) || a > b ? a : b;
}

}  // namespace psd::kernels::cuda
