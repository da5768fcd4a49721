#pragma once

// The names and signatures of the kernels that operators run. Each device has a table with the
// kernels that it offers; the CPU's table has all of them.
//
// The first argument is a stream of the device whose table has the kernel, or null for the CPU. All
// addresses of elements are in that device's memory; lists such as extents are on the host. Kernels
// add work to the stream and cannot fail, except for Matmul: when work cannot be added or done, the
// device is lost, which the next event of the stream reports.

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "core/base/kernel_table.h"
#include "core/tensor/dtype.h"
#include "core/tensor/strided_copy.h"

namespace psd::ops {

// Two arrays of the same shape, whose elements are in memory with steps, and a dense result. The
// spans have one number for each axis, and there is at least one axis. Along the last axis both
// steps are 1, or one of them is 0 and the other 1.
struct BinaryRun {
  DType dtype = DType::kF32;
  absl::Span<const int64_t> extents;  // none is 0
  absl::Span<const int64_t> a_steps;  // in elements
  absl::Span<const int64_t> b_steps;
  const std::byte* a = nullptr;
  const std::byte* b = nullptr;
  std::byte* out = nullptr;  // may be `a` if both are dense
};
using BinaryKernel = void(Stream* stream, const BinaryRun& run);
using BinaryName = KernelName<BinaryKernel>;
inline constexpr BinaryName kAdd{"Add", 1};
inline constexpr BinaryName kSub{"Sub", 2};
inline constexpr BinaryName kMul{"Mul", 3};
inline constexpr BinaryName kDiv{"Div", 4};  // f32 and f64 only

// `x` and `out` are dense runs of `count` elements.
using UnaryKernel = void(Stream* stream, DType dtype, const std::byte* x, std::byte* out,
                         size_t count);
using UnaryName = KernelName<UnaryKernel>;
inline constexpr UnaryName kNeg{"Neg", 5};  // i32 and i64 too
inline constexpr UnaryName kRelu{"Relu", 6};
inline constexpr UnaryName kSigmoid{"Sigmoid", 7};
inline constexpr UnaryName kTanh{"Tanh", 8};
inline constexpr UnaryName kExp{"Exp", 9};
inline constexpr UnaryName kLog{"Log", 10};
inline constexpr UnaryName kSqrt{"Sqrt", 11};

// The gradient of a function from its result `y` and the gradient `g` of that result.
using UnaryGradientKernel = void(Stream* stream, DType dtype, const std::byte* y,
                                 const std::byte* g, std::byte* out, size_t count);
using UnaryGradientName = KernelName<UnaryGradientKernel>;
inline constexpr UnaryGradientName kReluGradient{"ReluGradient", 12};
inline constexpr UnaryGradientName kSigmoidGradient{"SigmoidGradient", 13};
inline constexpr UnaryGradientName kTanhGradient{"TanhGradient", 14};
inline constexpr UnaryGradientName kSqrtGradient{"SqrtGradient", 15};

// A dense array seen as [outer, length, inner], where `length` is the extent of one axis.
struct AroundAxis {
  size_t outer = 1;
  size_t length = 1;
  size_t inner = 1;
};
// Reduces a dense array along one axis to a dense [outer, inner].
using ReduceKernel = void(Stream* stream, DType dtype, const std::byte* x, const AroundAxis& around,
                          std::byte* out);
using ReduceName = KernelName<ReduceKernel>;
inline constexpr ReduceName kSum{"Sum", 16};
// NaN counts as larger than any number. ArgMax writes i64. Requires: length is not 0.
inline constexpr ReduceName kMax{"Max", 17};
inline constexpr ReduceName kArgMax{"ArgMax", 18};

using CastKernel = void(Stream* stream, DType from, const std::byte* x, DType to, std::byte* out,
                        size_t count);
inline constexpr KernelName<CastKernel> kCast{"Cast", 19};

// Copies the rows `ids` of a dense table, one after the other, to `out`. All ids are in range.
using GatherRowsKernel = void(Stream* stream, const std::byte* table, size_t row_bytes,
                              const int64_t* ids, size_t count, std::byte* out);
inline constexpr KernelName<GatherRowsKernel> kGatherRows{"GatherRows", 20};

// Copies `count` packed rows to the rows `ids` of a dense table. All ids are in range, and no two
// are equal.
using ScatterRowsKernel = void(Stream* stream, std::byte* table, size_t row_bytes,
                               const int64_t* ids, size_t count, const std::byte* rows);
inline constexpr KernelName<ScatterRowsKernel> kScatterRows{"ScatterRows", 21};

// Softmax and similar functions over the last axis: `x` and `out` are `rows` dense rows of `cols`
// elements.
using RowsKernel = void(Stream* stream, DType dtype, const std::byte* x, size_t rows, size_t cols,
                        std::byte* out);
using RowsName = KernelName<RowsKernel>;
inline constexpr RowsName kSoftmax{"Softmax", 22};
inline constexpr RowsName kLogSoftmax{"LogSoftmax", 23};
// The gradient from the result `y` and the gradient `g` of that result.
using RowsGradientKernel = void(Stream* stream, DType dtype, const std::byte* y, const std::byte* g,
                                size_t rows, size_t cols, std::byte* out);
using RowsGradientName = KernelName<RowsGradientKernel>;
inline constexpr RowsGradientName kSoftmaxGradient{"SoftmaxGradient", 24};
inline constexpr RowsGradientName kLogSoftmaxGradient{"LogSoftmaxGradient", 25};

// `out` is the mean over the rows of -y[row, label of the row]; NaN if there are no rows. All
// labels are in [0, cols).
using CrossEntropyKernel = void(Stream* stream, DType dtype, const std::byte* y,
                                const int64_t* labels, size_t rows, size_t cols, std::byte* out);
inline constexpr KernelName<CrossEntropyKernel> kCrossEntropy{"CrossEntropy", 26};
// The gradient with respect to the logits. `y` are the log-probabilities, and `g` is one number,
// the gradient of the mean. Requires: rows is not 0.
using CrossEntropyGradientKernel = void(Stream* stream, DType dtype, const std::byte* y,
                                        const int64_t* labels, const std::byte* g, size_t rows,
                                        size_t cols, std::byte* out);
inline constexpr KernelName<CrossEntropyGradientKernel> kCrossEntropyGradient{
    "CrossEntropyGradient", 27};

// A matrix, row-major in memory with `stride` elements from one row to the next. If `transposed`,
// it stands for the transpose of the matrix in memory.
struct Matrix {
  const std::byte* data = nullptr;
  int64_t stride = 1;
  bool transposed = false;
};
// Computes c = a * b, or c += a * b if `adds`, where a is m x k, b is k x n, and c is m x n and
// dense. f32 and f64 only. Returns an error if nothing was added to the stream: GPUs need a library
// and memory for it.
using MatmulKernel = absl::Status(Stream* stream, DType dtype, int64_t m, int64_t n, int64_t k,
                                  const Matrix& a, const Matrix& b, bool adds, std::byte* c);
inline constexpr KernelName<MatmulKernel> kMatmul{"Matmul", 28};

// Fills `count` dense elements with random numbers, which depend on the seed and on the two
// parameters of the distribution only; see kernels/random.h.
using RandomKernel = void(Stream* stream, DType dtype, uint64_t seed, double first, double second,
                          std::byte* out, size_t count);
using RandomName = KernelName<RandomKernel>;
inline constexpr RandomName kUniform{"Uniform", 29};  // in [first, second)
inline constexpr RandomName kNormal{"Normal", 30};    // with mean and deviation

// The CPU's kernels, which are all of the above. Never destroyed.
const KernelTable& CpuKernels();

}  // namespace psd::ops
