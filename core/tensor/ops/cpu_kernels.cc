// The CPU's kernels for operators. They run on the calling thread.

#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "absl/base/attributes.h"
#include "core/tensor/dtype.h"
#include "core/tensor/ops/kernels.h"
#include "core/tensor/ops/with_dtype.h"
#include "core/tensor/shape.h"
#include "kernels/convert.h"
#include "kernels/elementwise.h"
#include "kernels/matmul.h"
#include "kernels/random.h"
#include "kernels/reduce.h"
#include "kernels/rows/rows.h"
#include "kernels/softmax.h"
#include "kernels/strided.h"

namespace psd::ops {
namespace {

using kernels::BinaryOp;
using kernels::UnaryGradientOp;
using kernels::UnaryOp;

template <typename T>
const T* As(const std::byte* data) {
  return reinterpret_cast<const T*>(data);
}
template <typename T>
T* As(std::byte* data) {
  return reinterpret_cast<T*>(data);
}

// Covers the last axis by one call, and loops over the others. This function is not inlined:
// otherwise a run of one axis would save the registers that the loop needs.
template <typename T>
ABSL_ATTRIBUTE_NOINLINE void RunBinaryRows(BinaryOp op, const BinaryRun& run, const T* a,
                                           const T* b, T* out) {
  const int outer = static_cast<int>(run.extents.size()) - 1;
  const int64_t row = run.extents[outer];
  const auto a_step = static_cast<size_t>(run.a_steps[outer]);
  const auto b_step = static_cast<size_t>(run.b_steps[outer]);
  Strides index(outer, 0);
  int64_t a_at = 0;
  int64_t b_at = 0;
  while (true) {
    kernels::Binary(op, a + a_at, a_step, b + b_at, b_step, out, static_cast<size_t>(row));
    out += row;
    int axis = outer - 1;
    for (; axis >= 0; --axis) {
      a_at += run.a_steps[axis];
      b_at += run.b_steps[axis];
      if (++index[axis] < run.extents[axis]) break;
      a_at -= run.a_steps[axis] * run.extents[axis];
      b_at -= run.b_steps[axis] * run.extents[axis];
      index[axis] = 0;
    }
    if (axis < 0) return;
  }
}

template <typename T>
void RunBinary(BinaryOp op, const BinaryRun& run, const T* a, const T* b, T* out) {
  if (run.extents.size() > 1) return RunBinaryRows(op, run, a, b, out);
  kernels::Binary(op, a, static_cast<size_t>(run.a_steps[0]), b,
                  static_cast<size_t>(run.b_steps[0]), out, static_cast<size_t>(run.extents[0]));
}

template <BinaryOp op>
void Binary(Stream* /*host*/, const BinaryRun& run) {
  WithNumber(run.dtype, [&](auto zero) {
    using T = decltype(zero);
    RunBinary<T>(op, run, As<T>(run.a), As<T>(run.b), As<T>(run.out));
  });
}

template <UnaryOp op>
void Unary(Stream* /*host*/, DType dtype, const std::byte* x, std::byte* out, size_t count) {
  WithFloat(dtype, [&](auto zero) {
    using T = decltype(zero);
    kernels::Unary(op, As<T>(x), As<T>(out), count);
  });
}

void Neg(Stream* /*host*/, DType dtype, const std::byte* x, std::byte* out, size_t count) {
  WithNumber(dtype, [&](auto zero) {
    using T = decltype(zero);
    if constexpr (std::is_integral_v<T>) {
      kernels::Negate(As<T>(x), As<T>(out), count);
    } else {
      kernels::Unary(UnaryOp::kNeg, As<T>(x), As<T>(out), count);
    }
  });
}

template <UnaryGradientOp op>
void UnaryGradient(Stream* /*host*/, DType dtype, const std::byte* y, const std::byte* g,
                   std::byte* out, size_t count) {
  WithFloat(dtype, [&](auto zero) {
    using T = decltype(zero);
    kernels::UnaryGradient(op, As<T>(y), As<T>(g), As<T>(out), count);
  });
}

template <typename T>
void SumAround(const T* x, const AroundAxis& around, T* out) {
  for (size_t i = 0; i < around.outer; ++i) {
    if (around.inner == 1) {
      out[i] = kernels::Sum(x + i * around.length, around.length);
    } else {
      kernels::SumColumns(x + i * around.length * around.inner, around.length, around.inner,
                          out + i * around.inner);
    }
  }
}

void Sum(Stream* /*host*/, DType dtype, const std::byte* x, const AroundAxis& around,
         std::byte* out) {
  WithNumber(dtype, [&](auto zero) {
    using T = decltype(zero);
    SumAround(As<T>(x), around, As<T>(out));
  });
}

// Calls visit(first, i, best) for each element of the result: `first` points to the first element
// along the axis, `i` is the index in the result, and `best` the index of the maximum along the
// axis.
template <typename T, typename Visit>
void VisitMaxima(const T* x, const AroundAxis& around, Visit visit) {
  for (size_t i = 0; i < around.outer; ++i) {
    for (size_t j = 0; j < around.inner; ++j) {
      const T* first = x + i * around.length * around.inner + j;
      visit(first, i * around.inner + j, kernels::ArgMax(first, around.length, around.inner));
    }
  }
}

void Max(Stream* /*host*/, DType dtype, const std::byte* x, const AroundAxis& around,
         std::byte* out) {
  WithNumber(dtype, [&](auto zero) {
    using T = decltype(zero);
    VisitMaxima(As<T>(x), around, [&](const T* first, size_t i, size_t best) {
      As<T>(out)[i] = first[best * around.inner];
    });
  });
}

void ArgMax(Stream* /*host*/, DType dtype, const std::byte* x, const AroundAxis& around,
            std::byte* out) {
  WithNumber(dtype, [&](auto zero) {
    using T = decltype(zero);
    VisitMaxima(As<T>(x), around, [&](const T*, size_t i, size_t best) {
      As<int64_t>(out)[i] = static_cast<int64_t>(best);
    });
  });
}

template <typename F>
void WithAny(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kF32:
      return f(float{});
    case DType::kF64:
      return f(double{});
    case DType::kI64:
      return f(int64_t{});
    case DType::kI32:
      return f(int32_t{});
    case DType::kU8:
      return f(uint8_t{});
    case DType::kBool:
      return f(bool{});
    case DType::kF16:
      return f(kernels::Half{});
    case DType::kBF16:
      return f(kernels::BFloat16{});
  }
}

// Returns element `i`. A bool is read as a byte, which is safe for bytes other than 0 and 1.
template <typename T>
auto Load(const std::byte* from, size_t i) {
  if constexpr (std::is_same_v<T, bool>) {
    return static_cast<uint8_t>(static_cast<uint8_t>(from[i]) != 0 ? 1 : 0);
  } else {
    return As<T>(from)[i];
  }
}

void Cast(Stream* /*host*/, DType from, const std::byte* x, DType to, std::byte* out,
          size_t count) {
  WithAny(from, [&](auto source) {
    WithAny(to, [&](auto target) {
      using Target = decltype(target);
      for (size_t i = 0; i < count; ++i)
        As<Target>(out)[i] = kernels::Convert<Target>(Load<decltype(source)>(x, i));
    });
  });
}

void GatherRows(Stream* /*host*/, const std::byte* table, size_t row_bytes, const int64_t* ids,
                size_t count, std::byte* out) {
  kernels::GatherRows(table, row_bytes, row_bytes, ids, count, out);
}

void ScatterRows(Stream* /*host*/, std::byte* table, size_t row_bytes, const int64_t* ids,
                 size_t count, const std::byte* rows) {
  for (size_t i = 0; i < count; ++i)
    std::memcpy(table + static_cast<size_t>(ids[i]) * row_bytes, rows + i * row_bytes, row_bytes);
}

// Wraps the kernels of kernels/softmax.h, which are overloaded for float and double, in functions
// with the signatures of the table.
#define PSD_ROWS_KERNEL(name)                                                                \
  void name(Stream* /*host*/, DType dtype, const std::byte* x, size_t rows, size_t cols,     \
            std::byte* out) {                                                                \
    WithFloat(dtype, [&](auto zero) {                                                        \
      using T = decltype(zero);                                                              \
      kernels::name(As<T>(x), rows, cols, As<T>(out));                                       \
    });                                                                                      \
  }                                                                                          \
  void name##Gradient(Stream* /*host*/, DType dtype, const std::byte* y, const std::byte* g, \
                      size_t rows, size_t cols, std::byte* out) {                            \
    WithFloat(dtype, [&](auto zero) {                                                        \
      using T = decltype(zero);                                                              \
      kernels::name##Gradient(As<T>(y), As<T>(g), rows, cols, As<T>(out));                   \
    });                                                                                      \
  }
PSD_ROWS_KERNEL(Softmax)
PSD_ROWS_KERNEL(LogSoftmax)
#undef PSD_ROWS_KERNEL

void CrossEntropy(Stream* /*host*/, DType dtype, const std::byte* y, const int64_t* labels,
                  size_t rows, size_t cols, std::byte* out) {
  WithFloat(dtype, [&](auto zero) {
    using T = decltype(zero);
    *As<T>(out) = rows == 0 ? std::numeric_limits<T>::quiet_NaN()
                            : kernels::MeanNegativeLogLikelihood(As<T>(y), labels, rows, cols);
  });
}

void CrossEntropyGradient(Stream* /*host*/, DType dtype, const std::byte* y, const int64_t* labels,
                          const std::byte* g, size_t rows, size_t cols, std::byte* out) {
  WithFloat(dtype, [&](auto zero) {
    using T = decltype(zero);
    kernels::CrossEntropyGradient(As<T>(y), labels, *As<T>(g) / static_cast<T>(rows), rows, cols,
                                  As<T>(out));
  });
}

absl::Status Matmul(Stream* /*host*/, DType dtype, int64_t m, int64_t n, int64_t k, const Matrix& a,
                    const Matrix& b, bool adds, std::byte* c) {
  WithFloat(dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto view = [](const Matrix& x) {
      return kernels::MatrixView<T>{As<T>(x.data), x.stride, x.transposed};
    };
    kernels::Gemm(m, n, k, view(a), view(b), static_cast<T>(adds), As<T>(c));
  });
  return absl::OkStatus();
}

void Uniform(Stream* /*host*/, DType dtype, uint64_t seed, double low, double high, std::byte* out,
             size_t count) {
  WithFloat(dtype, [&](auto zero) {
    kernels::FillUniform(seed, 0, low, high, As<decltype(zero)>(out), count);
  });
}

void Normal(Stream* /*host*/, DType dtype, uint64_t seed, double mean, double deviation,
            std::byte* out, size_t count) {
  WithFloat(dtype, [&](auto zero) {
    kernels::FillNormal(seed, 0, mean, deviation, As<decltype(zero)>(out), count);
  });
}

void StridedCopy(Stream* /*host*/, const std::byte* from, const int64_t* extents,
                 const int64_t* strides, int rank, size_t item_bytes, std::byte* to) {
  kernels::StridedCopy(from, extents, strides, rank, item_bytes, to);
}

KernelTable MakeCpuKernels() {
  KernelTable table;
  table.Add(kStridedCopy, StridedCopy);
  table.Add(kAdd, Binary<BinaryOp::kAdd>);
  table.Add(kSub, Binary<BinaryOp::kSub>);
  table.Add(kMul, Binary<BinaryOp::kMul>);
  table.Add(kDiv, Binary<BinaryOp::kDiv>);
  table.Add(kNeg, Neg);
  table.Add(kRelu, Unary<UnaryOp::kRelu>);
  table.Add(kSigmoid, Unary<UnaryOp::kSigmoid>);
  table.Add(kTanh, Unary<UnaryOp::kTanh>);
  table.Add(kExp, Unary<UnaryOp::kExp>);
  table.Add(kLog, Unary<UnaryOp::kLog>);
  table.Add(kSqrt, Unary<UnaryOp::kSqrt>);
  table.Add(kReluGradient, UnaryGradient<UnaryGradientOp::kRelu>);
  table.Add(kSigmoidGradient, UnaryGradient<UnaryGradientOp::kSigmoid>);
  table.Add(kTanhGradient, UnaryGradient<UnaryGradientOp::kTanh>);
  table.Add(kSqrtGradient, UnaryGradient<UnaryGradientOp::kSqrt>);
  table.Add(kSum, Sum);
  table.Add(kMax, Max);
  table.Add(kArgMax, ArgMax);
  table.Add(kCast, Cast);
  table.Add(kGatherRows, GatherRows);
  table.Add(kScatterRows, ScatterRows);
  table.Add(kSoftmax, Softmax);
  table.Add(kLogSoftmax, LogSoftmax);
  table.Add(kSoftmaxGradient, SoftmaxGradient);
  table.Add(kLogSoftmaxGradient, LogSoftmaxGradient);
  table.Add(kCrossEntropy, CrossEntropy);
  table.Add(kCrossEntropyGradient, CrossEntropyGradient);
  table.Add(kMatmul, Matmul);
  table.Add(kUniform, Uniform);
  table.Add(kNormal, Normal);
  return table;
}

}  // namespace

const KernelTable& CpuKernels() {
  static const KernelTable& table = *new KernelTable(MakeCpuKernels());
  return table;
}

}  // namespace psd::ops
