#include "core/tensor/ops/loss.h"

#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/tensor/ops/check.h"
#include "core/tensor/ops/elementwise.h"
#include "core/tensor/ops/reduce.h"
#include "core/tensor/ops/with_dtype.h"
#include "kernels/softmax.h"

namespace psd::ops {
namespace {

struct Rows {
  size_t rows = 0;
  size_t cols = 0;
};

// Requires: rank >= 1.
Rows RowsOf(const Tensor& x) {
  const int64_t cols = x.shape()[x.rank() - 1];
  if (cols == 0) return {};
  return {static_cast<size_t>(x.NumElements() / cols), static_cast<size_t>(cols)};
}

absl::Status CheckRows(absl::string_view op, const Tensor& x) {
  PSD_RETURN_IF_ERROR(CheckArithmetic(op, x, false));
  if (x.rank() >= 1) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(op, " was given ", x.ToString(), ", but takes at least one axis; reshape it"));
}

// Calls kernel(x, rows, cols, out) once for all rows of `x`.
template <typename Kernel>
absl::StatusOr<Tensor> ByRows(absl::string_view op, const Tensor& x, Kernel kernel) {
  PSD_RETURN_IF_ERROR(CheckRows(op, x));
  PSD_ASSIGN_OR_RETURN(Tensor dense, x.Contiguous());
  PSD_ASSIGN_OR_RETURN(Tensor out, Tensor::Empty(x.shape(), x.dtype()));
  const Rows shape = RowsOf(x);
  WithFloat(x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    kernel(dense.data<T>(), shape.rows, shape.cols, out.mutable_data<T>());
    return 0;
  });
  return out;
}

template <typename Kernel>
absl::StatusOr<Tensor> GradientByRows(absl::string_view op, const Tensor& y, const Tensor& g,
                                      Kernel kernel) {
  PSD_RETURN_IF_ERROR(CheckRows(op, y));
  PSD_RETURN_IF_ERROR(CheckPair(op, y, g, false));
  if (y.shape() != g.shape()) {
    return absl::InvalidArgumentError(absl::StrCat(op, " was given ", y.ToString(), " and ",
                                                   g.ToString(), ", which must be of one shape"));
  }
  PSD_ASSIGN_OR_RETURN(Tensor gs, g.Contiguous());
  return ByRows(op, y, [&](const auto* ys, size_t rows, size_t cols, auto* out) {
    using T = std::remove_pointer_t<decltype(out)>;
    kernel(ys, gs.data<T>(), rows, cols, out);
  });
}

absl::Status CheckLabels(const Tensor& logits, const Tensor& labels) {
  PSD_RETURN_IF_ERROR(CheckArithmetic("CrossEntropy", logits, false));
  PSD_RETURN_IF_ERROR(CheckUsable("CrossEntropy", labels));
  if (logits.rank() == 2 && labels.rank() == 1 && labels.dtype() == DType::kI64 &&
      labels.shape()[0] == logits.shape()[0])
    return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("CrossEntropy was given logits ", logits.ToString(), " and labels ",
                   labels.ToString(), "; logits are [B, C], labels i64[B]"));
}

absl::Status CheckLabelValues(const Tensor& labels, int64_t classes) {
  const int64_t* label = labels.data<int64_t>();
  for (int64_t row = 0; row < labels.NumElements(); ++row) {
    if (label[row] >= 0 && label[row] < classes) continue;
    return absl::InvalidArgumentError(absl::StrCat("CrossEntropy: label ", label[row], " of row ",
                                                   row, " is none of the ", classes,
                                                   " classes; labels go from 0 to ", classes - 1));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Tensor> Softmax(const Tensor& x) {
  return ByRows("Softmax", x, [](const auto* in, size_t rows, size_t cols, auto* out) {
    kernels::Softmax(in, rows, cols, out);
  });
}

absl::StatusOr<Tensor> LogSoftmax(const Tensor& x) {
  return ByRows("LogSoftmax", x, [](const auto* in, size_t rows, size_t cols, auto* out) {
    kernels::LogSoftmax(in, rows, cols, out);
  });
}

absl::StatusOr<Tensor> SoftmaxGradient(const Tensor& y, const Tensor& g) {
  return GradientByRows("SoftmaxGradient", y, g,
                        [](const auto* ys, const auto* gs, size_t rows, size_t cols, auto* out) {
                          kernels::SoftmaxGradient(ys, gs, rows, cols, out);
                        });
}

absl::StatusOr<Tensor> LogSoftmaxGradient(const Tensor& y, const Tensor& g) {
  return GradientByRows("LogSoftmaxGradient", y, g,
                        [](const auto* ys, const auto* gs, size_t rows, size_t cols, auto* out) {
                          kernels::LogSoftmaxGradient(ys, gs, rows, cols, out);
                        });
}

absl::StatusOr<Tensor> CrossEntropy(const Tensor& logits, const Tensor& labels,
                                    Tensor* log_probabilities) {
  PSD_RETURN_IF_ERROR(CheckLabels(logits, labels));
  PSD_ASSIGN_OR_RETURN(Tensor dense_labels, labels.Contiguous());
  PSD_RETURN_IF_ERROR(CheckLabelValues(dense_labels, logits.shape()[1]));
  PSD_ASSIGN_OR_RETURN(Tensor log_softmax, LogSoftmax(logits));
  PSD_ASSIGN_OR_RETURN(Tensor loss, Tensor::Empty(Shape{}, logits.dtype()));
  const Rows shape = RowsOf(logits);
  WithFloat(logits.dtype(), [&](auto zero) {
    using T = decltype(zero);
    *loss.mutable_data<T>() =
        shape.rows == 0
            ? std::numeric_limits<T>::quiet_NaN()
            : kernels::MeanNegativeLogLikelihood(
                  log_softmax.data<T>(), dense_labels.data<int64_t>(), shape.rows, shape.cols);
    return 0;
  });
  if (log_probabilities != nullptr) *log_probabilities = std::move(log_softmax);
  return loss;
}

absl::StatusOr<Tensor> CrossEntropyGradient(const Tensor& log_probabilities, const Tensor& labels,
                                            const Tensor& g) {
  PSD_RETURN_IF_ERROR(CheckLabels(log_probabilities, labels));
  PSD_RETURN_IF_ERROR(CheckPair("CrossEntropyGradient", log_probabilities, g, false));
  if (g.NumElements() != 1) {
    return absl::InvalidArgumentError(absl::StrCat("CrossEntropyGradient was given the gradient ",
                                                   g.ToString(),
                                                   " of its scalar result; give one element"));
  }
  PSD_ASSIGN_OR_RETURN(Tensor dense_labels, labels.Contiguous());
  PSD_RETURN_IF_ERROR(CheckLabelValues(dense_labels, log_probabilities.shape()[1]));
  return ByRows("CrossEntropyGradient", log_probabilities,
                [&](const auto* ys, size_t rows, size_t cols, auto* out) {
                  using T = std::remove_pointer_t<decltype(out)>;
                  if (rows == 0) return;
                  kernels::CrossEntropyGradient(ys, dense_labels.data<int64_t>(),
                                                *g.data<T>() / static_cast<T>(rows), rows, cols,
                                                out);
                });
}

absl::StatusOr<Tensor> Mse(const Tensor& a, const Tensor& b) {
  PSD_RETURN_IF_ERROR(CheckNumbersPair("Mse", a, b, false));
  if (a.shape() != b.shape()) {
    return absl::InvalidArgumentError(absl::StrCat("Mse was given ", a.ToString(), " and ",
                                                   b.ToString(),
                                                   ", which must be of one shape; reshape one"));
  }
  PSD_ASSIGN_OR_RETURN(Tensor difference, Sub(a, b));
  PSD_ASSIGN_OR_RETURN(Tensor squares, Mul(difference, difference));
  return Mean(squares);
}

}  // namespace psd::ops
