#include "kernels/cuda/arrays.h"
#include "kernels/cuda/operators_launch-inl.cuh"
#include "kernels/cuda/operators_launch.h"

namespace psd::kernels::cuda {

int LaunchBinary(BinaryOp op, NumberType type, const void* a, const StridedPlaces& a_places,
                 const void* b, const StridedPlaces& b_places, void* out, CUstream_st* stream) {
  const RunOnGpu run(stream);
  const auto with = [&](auto f) {
    WithBinary<decltype(f), RawArray>(type, a, a_places, b, b_places, out, MakeRaw(), run);
  };
  switch (op) {
    case BinaryOp::kAdd:
      with(AddOp());
      break;
    case BinaryOp::kSub:
      with(SubOp());
      break;
    case BinaryOp::kMul:
      with(MulOp());
      break;
    case BinaryOp::kDiv:
      with(DivOp());
      break;
  }
  return run.error();
}

}  // namespace psd::kernels::cuda
