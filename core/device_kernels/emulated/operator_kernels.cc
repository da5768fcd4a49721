#include "core/device_kernels/emulated/operator_kernels.h"

#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "core/base/device.h"
#include "core/base/stream.h"
#include "core/device/emulated/device_array.h"
#include "core/device/emulated/emulated_device.h"
#include "core/device/emulated/emulated_stream.h"
#include "core/device/emulated/visible_copy.h"
#include "core/device_kernels/emulated/launch.h"
#include "core/device_kernels/number_type.h"
#include "core/tensor/dtype.h"
#include "core/tensor/ops/kernels.h"
#include "core/tensor/strided_copy.h"
#include "kernels/cuda/operators.h"
#include "kernels/cuda/softmax.h"
#include "kernels/matmul.h"
#include "kernels/random_numbers.h"

namespace psd::emulated {
namespace {

namespace cuda = kernels::cuda;
using cuda::ReducedAxis;
using cuda::Reduction;
using cuda::StridedPlaces;

template <class Op, const ops::BinaryName& name>
void Binary(Stream* stream, const ops::BinaryRun& run) {
  const int rank = static_cast<int>(run.extents.size());
  cuda::WithBinary<Op, DeviceArray>(
      NumberTypeOf(run.dtype), run.a, StridedPlaces(run.extents.data(), run.a_steps.data(), rank),
      run.b, StridedPlaces(run.extents.data(), run.b_steps.data(), rank), run.out, kMake,
      RunOn(stream, name.name));
}

template <class Op, const ops::UnaryName& name>
void Unary(Stream* stream, DType dtype, const std::byte* x, std::byte* out, size_t count) {
  cuda::WithUnary<Op, DeviceArray>(NumberTypeOf(dtype), x, out, count, kMake,
                                   RunOn(stream, name.name));
}

template <class Op, const ops::UnaryGradientName& name>
void Gradient(Stream* stream, DType dtype, const std::byte* y, const std::byte* g, std::byte* out,
              size_t count) {
  cuda::WithGradient<Op, DeviceArray>(NumberTypeOf(dtype), y, g, out, count, kMake,
                                      RunOn(stream, name.name));
}

template <Reduction kReduction, const ops::ReduceName& name>
void Reduce(Stream* stream, DType dtype, const std::byte* x, const ops::AroundAxis& around,
            std::byte* out) {
  cuda::WithReduction<kReduction, DeviceArray>(
      NumberTypeOf(dtype), x, ReducedAxis{around.outer, around.length, around.inner}, out, kMake,
      RunOn(stream, name.name));
}

void Cast(Stream* stream, DType from, const std::byte* x, DType to, std::byte* out, size_t count) {
  cuda::WithCast<DeviceArray>(NumberTypeOf(from), x, NumberTypeOf(to), out, count, kMake,
                              RunOn(stream, ops::kCast.name));
}

void StridedCopy(Stream* stream, const std::byte* from, const int64_t* extents,
                 const int64_t* strides, int rank, size_t item_bytes, std::byte* to) {
  cuda::WithStridedCopy<DeviceArray>(from, StridedPlaces(extents, strides, rank), item_bytes, to,
                                     kMake, RunOn(stream, kStridedCopy.name));
}

// The kernel is not told how many rows the table has, so it may use the rest of the block.
size_t BytesOf(Stream* stream, const std::byte* table) {
  return static_cast<EmulatedDevice&>(stream->device()).BytesToEnd(table);
}

void GatherRows(Stream* stream, const std::byte* table, size_t row_bytes, const int64_t* ids,
                size_t count, std::byte* out) {
  cuda::WithRows<true, DeviceArray>(const_cast<std::byte*>(table), BytesOf(stream, table),
                                    row_bytes, ids, count, out, kMake,
                                    RunOn(stream, ops::kGatherRows.name));
}

void ScatterRows(Stream* stream, std::byte* table, size_t row_bytes, const int64_t* ids,
                 size_t count, const std::byte* rows) {
  cuda::WithRows<false, DeviceArray>(table, BytesOf(stream, table), row_bytes, ids, count,
                                     const_cast<std::byte*>(rows), kMake,
                                     RunOn(stream, ops::kScatterRows.name));
}

template <class Op, const ops::RowsName& name>
void Softmax(Stream* stream, DType dtype, const std::byte* x, size_t rows, size_t cols,
             std::byte* out) {
  cuda::WithSoftmax<Op, DeviceArray>(NumberTypeOf(dtype), x, rows, cols, out, kMake,
                                     RunBlocksOn(stream, name.name));
}

template <class Op, const ops::RowsGradientName& name>
void SoftmaxGradient(Stream* stream, DType dtype, const std::byte* y, const std::byte* g,
                     size_t rows, size_t cols, std::byte* out) {
  cuda::WithSoftmaxGradient<Op, DeviceArray>(NumberTypeOf(dtype), y, g, rows, cols, out, kMake,
                                             RunBlocksOn(stream, name.name));
}

void CrossEntropy(Stream* stream, DType dtype, const std::byte* y, const int64_t* labels,
                  size_t rows, size_t cols, std::byte* out) {
  cuda::WithCrossEntropy<DeviceArray>(NumberTypeOf(dtype), y, labels, rows, cols, out, kMake,
                                      RunBlocksOn(stream, ops::kCrossEntropy.name));
}

void CrossEntropyGradient(Stream* stream, DType dtype, const std::byte* y, const int64_t* labels,
                          const std::byte* g, size_t rows, size_t cols, std::byte* out) {
  cuda::WithCrossEntropyGradient<DeviceArray>(NumberTypeOf(dtype), y, labels, g, rows, cols, out,
                                              kMake,
                                              RunOn(stream, ops::kCrossEntropyGradient.name));
}

// cublasLt's twin: the CPU's product. ThreadSanitizer does not see what that library reads and
// writes, so it is told.
struct Multiply {
  template <typename T>
  void operator()(size_t /*only*/, int64_t m, int64_t n, int64_t k, const DeviceArray<T>& a,
                  int64_t a_stride, bool a_transposed, const DeviceArray<T>& b, int64_t b_stride,
                  bool b_transposed, bool adds, const DeviceArray<T>& c) const {
    const auto note = [](const DeviceArray<T>& x, auto access) {
      access(reinterpret_cast<std::byte*>(x.data()), x.size() * sizeof(T));
    };
    note(a, NoteRead);
    note(b, NoteRead);
    note(c, NoteWrite);
    kernels::Gemm(m, n, k, {a.data(), a_stride, a_transposed}, {b.data(), b_stride, b_transposed},
                  static_cast<T>(adds), c.data());
  }
};

// The elements of a matrix with this shape after transposition, from its first to its last one.
template <typename T>
DeviceArray<T> ElementsOf(const ops::Matrix& x, int64_t rows, int64_t cols) {
  if (x.transposed) std::swap(rows, cols);
  const int64_t size = rows == 0 || cols == 0 ? 0 : (rows - 1) * x.stride + cols;
  return {reinterpret_cast<T*>(const_cast<std::byte*>(x.data)), static_cast<size_t>(size)};
}

template <typename T>
absl::Status AddMatmul(EmulatedStream& stream, int64_t m, int64_t n, int64_t k,
                       const ops::Matrix& a, const ops::Matrix& b, bool adds, std::byte* c) {
  return stream.Launch(ops::kMatmul.name, 1, Multiply(), m, n, k, ElementsOf<T>(a, m, k), a.stride,
                       a.transposed, ElementsOf<T>(b, k, n), b.stride, b.transposed, adds,
                       ElementsOf<T>({c, n, false}, m, n));
}

absl::Status Matmul(Stream* stream, DType dtype, int64_t m, int64_t n, int64_t k,
                    const ops::Matrix& a, const ops::Matrix& b, bool adds, std::byte* c) {
  auto& own = static_cast<EmulatedStream&>(*stream);
  return dtype == DType::kF64 ? AddMatmul<double>(own, m, n, k, a, b, adds, c)
                              : AddMatmul<float>(own, m, n, k, a, b, adds, c);
}

template <template <typename> class Numbers, const ops::RandomName& name>
void Random(Stream* stream, DType dtype, uint64_t seed, double first, double second, std::byte* out,
            size_t count) {
  cuda::WithRandom<Numbers, DeviceArray>(NumberTypeOf(dtype), seed, first, second, out, count,
                                         kMake, RunOn(stream, name.name));
}

}  // namespace

KernelTable OperatorKernels() {
  KernelTable table;
  table.Add(kStridedCopy, StridedCopy);
  table.Add(ops::kAdd, Binary<cuda::AddOp, ops::kAdd>);
  table.Add(ops::kSub, Binary<cuda::SubOp, ops::kSub>);
  table.Add(ops::kMul, Binary<cuda::MulOp, ops::kMul>);
  table.Add(ops::kDiv, Binary<cuda::DivOp, ops::kDiv>);
  table.Add(ops::kNeg, Unary<cuda::NegOp, ops::kNeg>);
  table.Add(ops::kRelu, Unary<cuda::ReluOp, ops::kRelu>);
  table.Add(ops::kSigmoid, Unary<cuda::SigmoidOp, ops::kSigmoid>);
  table.Add(ops::kTanh, Unary<cuda::TanhOp, ops::kTanh>);
  table.Add(ops::kExp, Unary<cuda::ExpOp, ops::kExp>);
  table.Add(ops::kLog, Unary<cuda::LogOp, ops::kLog>);
  table.Add(ops::kSqrt, Unary<cuda::SqrtOp, ops::kSqrt>);
  table.Add(ops::kReluGradient, Gradient<cuda::ReluGradientOp, ops::kReluGradient>);
  table.Add(ops::kSigmoidGradient, Gradient<cuda::SigmoidGradientOp, ops::kSigmoidGradient>);
  table.Add(ops::kTanhGradient, Gradient<cuda::TanhGradientOp, ops::kTanhGradient>);
  table.Add(ops::kSqrtGradient, Gradient<cuda::SqrtGradientOp, ops::kSqrtGradient>);
  table.Add(ops::kSum, Reduce<Reduction::kSum, ops::kSum>);
  table.Add(ops::kMax, Reduce<Reduction::kMax, ops::kMax>);
  table.Add(ops::kArgMax, Reduce<Reduction::kArgMax, ops::kArgMax>);
  table.Add(ops::kCast, Cast);
  table.Add(ops::kGatherRows, GatherRows);
  table.Add(ops::kScatterRows, ScatterRows);
  table.Add(ops::kSoftmax, Softmax<cuda::SoftmaxOp, ops::kSoftmax>);
  table.Add(ops::kLogSoftmax, Softmax<cuda::LogSoftmaxOp, ops::kLogSoftmax>);
  table.Add(ops::kSoftmaxGradient, SoftmaxGradient<cuda::SoftmaxGradientOp, ops::kSoftmaxGradient>);
  table.Add(ops::kLogSoftmaxGradient,
            SoftmaxGradient<cuda::LogSoftmaxGradientOp, ops::kLogSoftmaxGradient>);
  table.Add(ops::kCrossEntropy, CrossEntropy);
  table.Add(ops::kCrossEntropyGradient, CrossEntropyGradient);
  table.Add(ops::kMatmul, Matmul);
  table.Add(ops::kUniform, Random<kernels::UniformNumbers, ops::kUniform>);
  table.Add(ops::kNormal, Random<kernels::NormalNumbers, ops::kNormal>);
  return table;
}

}  // namespace psd::emulated
