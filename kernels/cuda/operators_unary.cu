#include "kernels/cuda/arrays.h"
#include "kernels/cuda/operators_launch-inl.cuh"
#include "kernels/cuda/operators_launch.h"

namespace psd::kernels::cuda {

int LaunchUnary(UnaryOp op, NumberType type, const void* x, void* out, size_t count,
                CUstream_st* stream) {
  const RunOnGpu run(stream);
  const auto with = [&](auto f) {
    WithUnary<decltype(f), RawArray>(type, x, out, count, MakeRaw(), run);
  };
  switch (op) {
    case UnaryOp::kNeg:
      with(NegOp());
      break;
    case UnaryOp::kRelu:
      with(ReluOp());
      break;
    case UnaryOp::kSigmoid:
      with(SigmoidOp());
      break;
    case UnaryOp::kTanh:
      with(TanhOp());
      break;
    case UnaryOp::kExp:
      with(ExpOp());
      break;
    case UnaryOp::kLog:
      with(LogOp());
      break;
    case UnaryOp::kSqrt:
      with(SqrtOp());
      break;
  }
  return run.error();
}

int LaunchUnaryGradient(UnaryGradientOp op, NumberType type, const void* y, const void* g,
                        void* out, size_t count, CUstream_st* stream) {
  const RunOnGpu run(stream);
  const auto with = [&](auto f) {
    WithGradient<decltype(f), RawArray>(type, y, g, out, count, MakeRaw(), run);
  };
  switch (op) {
    case UnaryGradientOp::kRelu:
      with(ReluGradientOp());
      break;
    case UnaryGradientOp::kSigmoid:
      with(SigmoidGradientOp());
      break;
    case UnaryGradientOp::kTanh:
      with(TanhGradientOp());
      break;
    case UnaryGradientOp::kSqrt:
      with(SqrtGradientOp());
      break;
  }
  return run.error();
}

}  // namespace psd::kernels::cuda
