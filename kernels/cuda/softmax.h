#pragma once

// Softmax, log-softmax, cross entropy and their gradients, for GPUs and their emulation. They are
// documented in kernels/softmax.h.
//
// A body of rows has the arrays and numbers of one call. body(block, index, shared) is the work of
// block number `index`, and body.VisitArrays(visit) calls visit(array) for each of its arrays. Each
// With function below calls run(body, blocks) with the body of a call and the number of its blocks;
// nothing is run for 0. The gradient of the cross entropy is computed element by element; its With
// function is like those of kernels/cuda/operators.h. make(address, size) makes an array from a
// typed address (kernels/cuda/arrays.h).
//
// Some neighbouring threads share a row. Sums are in double, and their order depends only on the
// number of columns, so results repeat. On the host, results differ from those of the CPU's
// kernels, which sum in the type of the elements, by at most so many units in the last place of the
// number beside it, as operator_kernels_test measures for up to 1,000 rows and columns:
//   softmax                  32 of the result
//   log-softmax               8 of the result, or of 1 if that is larger
//   gradient of softmax       8 of y * (the largest |g| of the row)
//   gradient of log-softmax   8 of |g| + exp(y) * (the sum of |g| over the row)
//   cross entropy             1 for f32 and 8 for f64, of the result, or of 1 if that is larger
//   its gradient              2 of g / rows
// NaN is NaN on both, but its bits may differ.
// An output may be one of its inputs.

#include <cstddef>
#include <cstdint>
#include <limits>

#include "kernels/cuda/block.h"
#include "kernels/cuda/block_rows.h"
#include "kernels/cuda/numbers.h"
#include "kernels/cuda/operators.h"
#include "kernels/host_device.h"

namespace psd::kernels::cuda {

struct MaxOrNanOp {
  PSD_HOST_DEVICE double operator()(double a, double b) const { return MaxOrNan(a, b); }
};

// ---- the last step of each function, for one element. `Row` has what is computed once per row.

// From an element x, its distance x - most from the largest of the row, and the row's sum of the
// exponentials of these distances.
struct SoftmaxOp {
  PSD_HOST_DEVICE static double Row(double sum) { return 1 / sum; }
  template <typename T>
  PSD_HOST_DEVICE T operator()(T distance, double inverse) const {
    return static_cast<T>(static_cast<double>(ExpOp()(distance)) * inverse);
  }
};
struct LogSoftmaxOp {
  PSD_HOST_DEVICE static double Row(double sum) { return LogOp()(sum); }
  template <typename T>
  PSD_HOST_DEVICE T operator()(T distance, double log_sum) const {
    return distance - static_cast<T>(log_sum);
  }
};

// From the result y and its gradient g. Term is what is summed over the row.
struct SoftmaxGradientOp {
  PSD_HOST_DEVICE static double Term(double y, double g) { return y * g; }
  template <typename T>
  PSD_HOST_DEVICE T operator()(T y, T g, T sum) const {
    return y * (g - sum);
  }
};
struct LogSoftmaxGradientOp {
  PSD_HOST_DEVICE static double Term(double /*y*/, double g) { return g; }
  template <typename T>
  PSD_HOST_DEVICE T operator()(T y, T g, T sum) const {
    return g - ExpOp()(y) * sum;
  }
};

// ---- bodies

template <typename T, class Op, template <typename> class ArrayOf>
struct SoftmaxBody {
  ArrayOf<const T> x;
  ArrayOf<T> out;
  BlockRows rows;

  template <class Block>
  PSD_HOST_DEVICE void operator()(const Block& block, size_t index, RowShared& shared) const {
    CombineRows(
        block, rows, index, -std::numeric_limits<double>::infinity(),
        [&](size_t /*thread*/, size_t i) { return static_cast<double>(x[i]); }, MaxOrNanOp(),
        shared.most);
    const auto distance = [&](size_t thread, size_t i) {
      return x[i] - static_cast<T>(shared.most[rows.First(thread)]);
    };
    CombineRows(
        block, rows, index, 0,
        [&](size_t thread, size_t i) { return static_cast<double>(ExpOp()(distance(thread, i))); },
        Plus(), shared.sum);
    block.EachThread([&](size_t thread) {
      const double row = Op::Row(shared.sum[rows.First(thread)]);
      rows.ForEach(index, thread, [&](size_t i) { out[i] = Op()(distance(thread, i), row); });
    });
  }
  template <typename Visit>
  void VisitArrays(Visit& visit) {
    visit(x), visit(out);
  }
};

template <typename T, class Op, template <typename> class ArrayOf>
struct SoftmaxGradientBody {
  ArrayOf<const T> y, g;
  ArrayOf<T> out;
  BlockRows rows;

  template <class Block>
  PSD_HOST_DEVICE void operator()(const Block& block, size_t index, RowShared& shared) const {
    CombineRows(
        block, rows, index, 0,
        [&](size_t /*thread*/, size_t i) {
          return Op::Term(static_cast<double>(y[i]), static_cast<double>(g[i]));
        },
        Plus(), shared.sum);
    block.EachThread([&](size_t thread) {
      const T sum = static_cast<T>(shared.sum[rows.First(thread)]);
      rows.ForEach(index, thread, [&](size_t i) { out[i] = Op()(y[i], g[i], sum); });
    });
  }
  template <typename Visit>
  void VisitArrays(Visit& visit) {
    visit(y), visit(g), visit(out);
  }
};

// One block sums over all rows. Without rows the result is 0 / 0, NaN.
template <typename T, template <typename> class ArrayOf>
struct CrossEntropyBody {
  ArrayOf<const T> y;
  ArrayOf<const int64_t> labels;
  ArrayOf<T> out;
  size_t rows, cols;

  template <class Block>
  PSD_HOST_DEVICE void operator()(const Block& block, size_t /*index*/, RowShared& shared) const {
    block.EachThread([&](size_t thread) {
      double sum = 0;
      for (size_t row = thread; row < rows; row += kBlockThreads)
        sum -= static_cast<double>(y[row * cols + static_cast<size_t>(labels[row])]);
      shared.sum[thread] = sum;
    });
    CombineThreads(block, shared.sum, Plus());
    block.EachThread([&](size_t thread) {
      if (thread == 0) out[0] = static_cast<T>(shared.sum[0] / static_cast<double>(rows));
    });
  }
  template <typename Visit>
  void VisitArrays(Visit& visit) {
    visit(y), visit(labels), visit(out);
  }
};

template <typename T, template <typename> class ArrayOf>
struct CrossEntropyGradientBody {
  ArrayOf<const T> y;
  ArrayOf<const int64_t> labels;
  ArrayOf<const T> g;
  ArrayOf<T> out;
  size_t rows, cols;

  PSD_HOST_DEVICE void operator()(size_t i) const {
    const T scale = g[0] / static_cast<T>(rows);
    const T part = ExpOp()(y[i]) * scale;
    out[i] = i % cols == static_cast<size_t>(labels[i / cols]) ? part - scale : part;
  }
  template <typename Visit>
  void VisitArrays(Visit& visit) {
    visit(y), visit(labels), visit(g), visit(out);
  }
};

// ---- dispatch. The types are f32 and f64.

template <class Op, template <typename> class ArrayOf, typename Make, typename Run>
void WithSoftmax(NumberType type, const void* x, size_t rows, size_t cols, void* out,
                 const Make& make, const Run& run) {
  if (rows == 0) return;
  WithFloatType(type, [&](auto zero) {
    using T = decltype(zero);
    const BlockRows shared_rows(rows, cols);
    const size_t count = shared_rows.elements();
    run(SoftmaxBody<T, Op, ArrayOf>{make(As<T>(x), count), make(As<T>(out), count), shared_rows},
        shared_rows.blocks());
  });
}

template <class Op, template <typename> class ArrayOf, typename Make, typename Run>
void WithSoftmaxGradient(NumberType type, const void* y, const void* g, size_t rows, size_t cols,
                         void* out, const Make& make, const Run& run) {
  if (rows == 0) return;
  WithFloatType(type, [&](auto zero) {
    using T = decltype(zero);
    const BlockRows shared_rows(rows, cols);
    const size_t count = shared_rows.elements();
    run(SoftmaxGradientBody<T, Op, ArrayOf>{make(As<T>(y), count), make(As<T>(g), count),
                                            make(As<T>(out), count), shared_rows},
        shared_rows.blocks());
  });
}

template <template <typename> class ArrayOf, typename Make, typename Run>
void WithCrossEntropy(NumberType type, const void* y, const int64_t* labels, size_t rows,
                      size_t cols, void* out, const Make& make, const Run& run) {
  WithFloatType(type, [&](auto zero) {
    using T = decltype(zero);
    run(CrossEntropyBody<T, ArrayOf>{make(As<T>(y), rows * cols), make(labels, rows),
                                     make(As<T>(out), 1), rows, cols},
        1);
  });
}

template <template <typename> class ArrayOf, typename Make, typename Run>
void WithCrossEntropyGradient(NumberType type, const void* y, const int64_t* labels, const void* g,
                              size_t rows, size_t cols, void* out, const Make& make,
                              const Run& run) {
  const size_t count = rows * cols;
  if (count == 0) return;
  WithFloatType(type, [&](auto zero) {
    using T = decltype(zero);
    run(CrossEntropyGradientBody<T, ArrayOf>{make(As<T>(y), count), make(labels, rows),
                                             make(As<T>(g), 1), make(As<T>(out), count), rows,
                                             cols},
        count);
  });
}

}  // namespace psd::kernels::cuda
