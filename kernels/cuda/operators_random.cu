#include "kernels/cuda/arrays.h"
#include "kernels/cuda/operators_launch-inl.cuh"
#include "kernels/cuda/operators_launch.h"
#include "kernels/random_numbers.h"

namespace psd::kernels::cuda {

int LaunchUniform(NumberType type, uint64_t seed, double low, double high, void* out, size_t count,
                  CUstream_st* stream) {
  const RunOnGpu run(stream);
  WithRandom<UniformNumbers, RawArray>(type, seed, low, high, out, count, MakeRaw(), run);
  return run.error();
}

int LaunchNormal(NumberType type, uint64_t seed, double mean, double deviation, void* out,
                 size_t count, CUstream_st* stream) {
  const RunOnGpu run(stream);
  WithRandom<NormalNumbers, RawArray>(type, seed, mean, deviation, out, count, MakeRaw(), run);
  return run.error();
}

}  // namespace psd::kernels::cuda
