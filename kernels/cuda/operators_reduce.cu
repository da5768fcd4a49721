#include "kernels/cuda/arrays.h"
#include "kernels/cuda/operators_launch-inl.cuh"
#include "kernels/cuda/operators_launch.h"

namespace psd::kernels::cuda {

int LaunchReduction(Reduction reduction, NumberType type, const void* x, const ReducedAxis& axis,
                    void* out, CUstream_st* stream) {
  const RunOnGpu run(stream);
  switch (reduction) {
    case Reduction::kSum:
      WithReduction<Reduction::kSum, RawArray>(type, x, axis, out, MakeRaw(), run);
      break;
    case Reduction::kMax:
      WithReduction<Reduction::kMax, RawArray>(type, x, axis, out, MakeRaw(), run);
      break;
    case Reduction::kArgMax:
      WithReduction<Reduction::kArgMax, RawArray>(type, x, axis, out, MakeRaw(), run);
      break;
  }
  return run.error();
}

}  // namespace psd::kernels::cuda
