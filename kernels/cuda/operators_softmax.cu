#include "kernels/cuda/arrays.h"
#include "kernels/cuda/operators_launch-inl.cuh"
#include "kernels/cuda/operators_launch.h"
#include "kernels/cuda/softmax.h"

namespace psd::kernels::cuda {

int LaunchSoftmax(NumberType type, const void* x, size_t rows, size_t cols, void* out,
                  CUstream_st* stream) {
  const RunBlocksOnGpu run(stream);
  WithSoftmax<SoftmaxOp, RawArray>(type, x, rows, cols, out, MakeRaw(), run);
  return run.error();
}

int LaunchLogSoftmax(NumberType type, const void* x, size_t rows, size_t cols, void* out,
                     CUstream_st* stream) {
  const RunBlocksOnGpu run(stream);
  WithSoftmax<LogSoftmaxOp, RawArray>(type, x, rows, cols, out, MakeRaw(), run);
  return run.error();
}

int LaunchSoftmaxGradient(NumberType type, const void* y, const void* g, size_t rows, size_t cols,
                          void* out, CUstream_st* stream) {
  const RunBlocksOnGpu run(stream);
  WithSoftmaxGradient<SoftmaxGradientOp, RawArray>(type, y, g, rows, cols, out, MakeRaw(), run);
  return run.error();
}

int LaunchLogSoftmaxGradient(NumberType type, const void* y, const void* g, size_t rows,
                             size_t cols, void* out, CUstream_st* stream) {
  const RunBlocksOnGpu run(stream);
  WithSoftmaxGradient<LogSoftmaxGradientOp, RawArray>(type, y, g, rows, cols, out, MakeRaw(), run);
  return run.error();
}

int LaunchCrossEntropy(NumberType type, const void* y, const int64_t* labels, size_t rows,
                       size_t cols, void* out, CUstream_st* stream) {
  const RunBlocksOnGpu run(stream);
  WithCrossEntropy<RawArray>(type, y, labels, rows, cols, out, MakeRaw(), run);
  return run.error();
}

int LaunchCrossEntropyGradient(NumberType type, const void* y, const int64_t* labels, const void* g,
                               size_t rows, size_t cols, void* out, CUstream_st* stream) {
  const RunOnGpu run(stream);
  WithCrossEntropyGradient<RawArray>(type, y, labels, g, rows, cols, out, MakeRaw(), run);
  return run.error();
}

}  // namespace psd::kernels::cuda
