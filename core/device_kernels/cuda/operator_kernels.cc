#include "core/device_kernels/cuda/operator_kernels.h"

#include <cstddef>
#include <cstdint>

#include "core/base/stream.h"
#include "core/device_kernels/cuda/launch.h"
#include "core/device_kernels/cuda/matmul_kernel.h"
#include "core/device_kernels/number_type.h"
#include "core/tensor/dtype.h"
#include "core/tensor/ops/kernels.h"
#include "core/tensor/strided_copy.h"
#include "kernels/cuda/operators.h"
#include "kernels/cuda/operators_launch.h"
#include "kernels/elementwise.h"

namespace psd::cuda {
namespace {

using kernels::BinaryOp;
using kernels::UnaryGradientOp;
using kernels::UnaryOp;
using kernels::cuda::Reduction;
using kernels::cuda::StridedPlaces;

template <BinaryOp op, const ops::BinaryName& name>
void Binary(Stream* stream, const ops::BinaryRun& run) {
  const int rank = static_cast<int>(run.extents.size());
  AddKernel(stream, name.name, [&](CUstream_st* handle) {
    return kernels::cuda::LaunchBinary(
        op, NumberTypeOf(run.dtype), run.a,
        StridedPlaces(run.extents.data(), run.a_steps.data(), rank), run.b,
        StridedPlaces(run.extents.data(), run.b_steps.data(), rank), run.out, handle);
  });
}

template <UnaryOp op, const ops::UnaryName& name>
void Unary(Stream* stream, DType dtype, const std::byte* x, std::byte* out, size_t count) {
  AddKernel(stream, name.name, [&](CUstream_st* handle) {
    return kernels::cuda::LaunchUnary(op, NumberTypeOf(dtype), x, out, count, handle);
  });
}

template <UnaryGradientOp op, const ops::UnaryGradientName& name>
void Gradient(Stream* stream, DType dtype, const std::byte* y, const std::byte* g, std::byte* out,
              size_t count) {
  AddKernel(stream, name.name, [&](CUstream_st* handle) {
    return kernels::cuda::LaunchUnaryGradient(op, NumberTypeOf(dtype), y, g, out, count, handle);
  });
}

template <Reduction reduction, const ops::ReduceName& name>
void Reduce(Stream* stream, DType dtype, const std::byte* x, const ops::AroundAxis& around,
            std::byte* out) {
  AddKernel(stream, name.name, [&](CUstream_st* handle) {
    return kernels::cuda::LaunchReduction(reduction, NumberTypeOf(dtype), x,
                                          {around.outer, around.length, around.inner}, out, handle);
  });
}

void Cast(Stream* stream, DType from, const std::byte* x, DType to, std::byte* out, size_t count) {
  AddKernel(stream, ops::kCast.name, [&](CUstream_st* handle) {
    return kernels::cuda::LaunchCast(NumberTypeOf(from), x, NumberTypeOf(to), out, count, handle);
  });
}

void StridedCopy(Stream* stream, const std::byte* from, const int64_t* extents,
                 const int64_t* strides, int rank, size_t item_bytes, std::byte* to) {
  AddKernel(stream, kStridedCopy.name, [&](CUstream_st* handle) {
    return kernels::cuda::LaunchStridedCopy(from, StridedPlaces(extents, strides, rank), item_bytes,
                                            to, handle);
  });
}

void GatherRows(Stream* stream, const std::byte* table, size_t row_bytes, const int64_t* ids,
                size_t count, std::byte* out) {
  AddKernel(stream, ops::kGatherRows.name, [&](CUstream_st* handle) {
    return kernels::cuda::LaunchGatherRows(table, row_bytes, ids, count, out, handle);
  });
}

void ScatterRows(Stream* stream, std::byte* table, size_t row_bytes, const int64_t* ids,
                 size_t count, const std::byte* rows) {
  AddKernel(stream, ops::kScatterRows.name, [&](CUstream_st* handle) {
    return kernels::cuda::LaunchScatterRows(table, row_bytes, ids, count, rows, handle);
  });
}

template <auto launch, const ops::RowsName& name>
void Softmax(Stream* stream, DType dtype, const std::byte* x, size_t rows, size_t cols,
             std::byte* out) {
  AddKernel(stream, name.name, [&](CUstream_st* handle) {
    return launch(NumberTypeOf(dtype), x, rows, cols, out, handle);
  });
}

template <auto launch, const ops::RowsGradientName& name>
void SoftmaxGradient(Stream* stream, DType dtype, const std::byte* y, const std::byte* g,
                     size_t rows, size_t cols, std::byte* out) {
  AddKernel(stream, name.name, [&](CUstream_st* handle) {
    return launch(NumberTypeOf(dtype), y, g, rows, cols, out, handle);
  });
}

void CrossEntropy(Stream* stream, DType dtype, const std::byte* y, const int64_t* labels,
                  size_t rows, size_t cols, std::byte* out) {
  AddKernel(stream, ops::kCrossEntropy.name, [&](CUstream_st* handle) {
    return kernels::cuda::LaunchCrossEntropy(NumberTypeOf(dtype), y, labels, rows, cols, out,
                                             handle);
  });
}

void CrossEntropyGradient(Stream* stream, DType dtype, const std::byte* y, const int64_t* labels,
                          const std::byte* g, size_t rows, size_t cols, std::byte* out) {
  AddKernel(stream, ops::kCrossEntropyGradient.name, [&](CUstream_st* handle) {
    return kernels::cuda::LaunchCrossEntropyGradient(NumberTypeOf(dtype), y, labels, g, rows, cols,
                                                     out, handle);
  });
}

template <auto launch, const ops::RandomName& name>
void Random(Stream* stream, DType dtype, uint64_t seed, double first, double second, std::byte* out,
            size_t count) {
  AddKernel(stream, name.name, [&](CUstream_st* handle) {
    return launch(NumberTypeOf(dtype), seed, first, second, out, count, handle);
  });
}

}  // namespace

KernelTable OperatorKernels() {
  KernelTable table;
  table.Add(kStridedCopy, StridedCopy);
  table.Add(ops::kAdd, Binary<BinaryOp::kAdd, ops::kAdd>);
  table.Add(ops::kSub, Binary<BinaryOp::kSub, ops::kSub>);
  table.Add(ops::kMul, Binary<BinaryOp::kMul, ops::kMul>);
  table.Add(ops::kDiv, Binary<BinaryOp::kDiv, ops::kDiv>);
  table.Add(ops::kNeg, Unary<UnaryOp::kNeg, ops::kNeg>);
  table.Add(ops::kRelu, Unary<UnaryOp::kRelu, ops::kRelu>);
  table.Add(ops::kSigmoid, Unary<UnaryOp::kSigmoid, ops::kSigmoid>);
  table.Add(ops::kTanh, Unary<UnaryOp::kTanh, ops::kTanh>);
  table.Add(ops::kExp, Unary<UnaryOp::kExp, ops::kExp>);
  table.Add(ops::kLog, Unary<UnaryOp::kLog, ops::kLog>);
  table.Add(ops::kSqrt, Unary<UnaryOp::kSqrt, ops::kSqrt>);
  table.Add(ops::kReluGradient, Gradient<UnaryGradientOp::kRelu, ops::kReluGradient>);
  table.Add(ops::kSigmoidGradient, Gradient<UnaryGradientOp::kSigmoid, ops::kSigmoidGradient>);
  table.Add(ops::kTanhGradient, Gradient<UnaryGradientOp::kTanh, ops::kTanhGradient>);
  table.Add(ops::kSqrtGradient, Gradient<UnaryGradientOp::kSqrt, ops::kSqrtGradient>);
  table.Add(ops::kSum, Reduce<Reduction::kSum, ops::kSum>);
  table.Add(ops::kMax, Reduce<Reduction::kMax, ops::kMax>);
  table.Add(ops::kArgMax, Reduce<Reduction::kArgMax, ops::kArgMax>);
  table.Add(ops::kCast, Cast);
  table.Add(ops::kGatherRows, GatherRows);
  table.Add(ops::kScatterRows, ScatterRows);
  table.Add(ops::kSoftmax, Softmax<kernels::cuda::LaunchSoftmax, ops::kSoftmax>);
  table.Add(ops::kLogSoftmax, Softmax<kernels::cuda::LaunchLogSoftmax, ops::kLogSoftmax>);
  table.Add(ops::kSoftmaxGradient,
            SoftmaxGradient<kernels::cuda::LaunchSoftmaxGradient, ops::kSoftmaxGradient>);
  table.Add(ops::kLogSoftmaxGradient,
            SoftmaxGradient<kernels::cuda::LaunchLogSoftmaxGradient, ops::kLogSoftmaxGradient>);
  table.Add(ops::kCrossEntropy, CrossEntropy);
  table.Add(ops::kCrossEntropyGradient, CrossEntropyGradient);
  table.Add(ops::kMatmul, Matmul);
  table.Add(ops::kUniform, Random<kernels::cuda::LaunchUniform, ops::kUniform>);
  table.Add(ops::kNormal, Random<kernels::cuda::LaunchNormal, ops::kNormal>);
  return table;
}

}  // namespace psd::cuda
