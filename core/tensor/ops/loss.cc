#include "core/tensor/ops/loss.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/device.h"
#include "core/base/remedy.h"
#include "core/tensor/ops/check.h"
#include "core/tensor/ops/elementwise.h"
#include "core/tensor/ops/kernels.h"
#include "core/tensor/ops/reduce.h"

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
  PSD_RETURN_IF_ERROR(CheckNumbers(op, x, false));
  if (x.rank() >= 1) return absl::OkStatus();
  return WithRemedy(absl::InvalidArgumentError(absl::StrCat(op, " was given ", x.ToString(),
                                                            ", but takes at least one axis")),
                    "reshape it");
}

absl::StatusOr<Tensor> ByRows(const RowsName& op, const Tensor& x) {
  PSD_RETURN_IF_ERROR(CheckRows(op.name, x));
  PSD_ASSIGN_OR_RETURN(RowsKernel* const kernel, KernelFor(op, x));
  PSD_ASSIGN_OR_RETURN(const Tensor dense, x.Contiguous());
  PSD_ASSIGN_OR_RETURN(Tensor out, Tensor::EmptyLike(x));
  const Rows shape = RowsOf(x);
  kernel(StreamFor(x), x.dtype(), dense.address(), shape.rows, shape.cols, out.mutable_address());
  return out;
}

absl::StatusOr<Tensor> GradientByRows(const RowsGradientName& op, const Tensor& y,
                                      const Tensor& g) {
  PSD_RETURN_IF_ERROR(CheckRows(op.name, y));
  PSD_RETURN_IF_ERROR(CheckNumbersPair(op.name, y, g, false));
  if (y.shape() != g.shape()) {
    return absl::InvalidArgumentError(absl::StrCat(op.name, " was given ", y.ToString(), " and ",
                                                   g.ToString(), ", which must be of one shape"));
  }
  PSD_ASSIGN_OR_RETURN(RowsGradientKernel* const kernel, KernelFor(op, y));
  PSD_ASSIGN_OR_RETURN(const Tensor ys, y.Contiguous());
  PSD_ASSIGN_OR_RETURN(const Tensor gs, g.Contiguous());
  PSD_ASSIGN_OR_RETURN(Tensor out, Tensor::EmptyLike(y));
  const Rows shape = RowsOf(y);
  kernel(StreamFor(y), y.dtype(), ys.address(), gs.address(), shape.rows, shape.cols,
         out.mutable_address());
  return out;
}

absl::Status CheckLabels(const Tensor& logits, const Tensor& labels) {
  PSD_RETURN_IF_ERROR(CheckNumbers(kCrossEntropy.name, logits, false));
  PSD_RETURN_IF_ERROR(CheckDefined(kCrossEntropy.name, labels));
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

// Returns the labels, which may be on any device, contiguous on the device of `logits`. Errors:
// INVALID_ARGUMENT for a label that is not a class.
absl::StatusOr<Tensor> LabelsBeside(const Tensor& logits, const Tensor& labels) {
  PSD_ASSIGN_OR_RETURN(const Tensor here, labels.ToHost());
  PSD_ASSIGN_OR_RETURN(Tensor dense, here.Contiguous());
  PSD_RETURN_IF_ERROR(CheckLabelValues(dense, logits.shape()[1]));
  if (logits.OnHost()) return dense;
  return dense.Clone(&logits.device()->memory());
}

const int64_t* AsLabels(const Tensor& labels) {
  return reinterpret_cast<const int64_t*>(labels.address());
}

}  // namespace

absl::StatusOr<Tensor> Softmax(const Tensor& x) {
  return ByRows(kSoftmax, x);
}

absl::StatusOr<Tensor> LogSoftmax(const Tensor& x) {
  return ByRows(kLogSoftmax, x);
}

absl::StatusOr<Tensor> SoftmaxGradient(const Tensor& y, const Tensor& g) {
  return GradientByRows(kSoftmaxGradient, y, g);
}

absl::StatusOr<Tensor> LogSoftmaxGradient(const Tensor& y, const Tensor& g) {
  return GradientByRows(kLogSoftmaxGradient, y, g);
}

absl::StatusOr<Tensor> CrossEntropy(const Tensor& logits, const Tensor& labels,
                                    Tensor* log_probabilities) {
  PSD_RETURN_IF_ERROR(CheckLabels(logits, labels));
  PSD_ASSIGN_OR_RETURN(CrossEntropyKernel* const kernel, KernelFor(kCrossEntropy, logits));
  PSD_ASSIGN_OR_RETURN(const Tensor there, LabelsBeside(logits, labels));
  PSD_ASSIGN_OR_RETURN(Tensor log_softmax, LogSoftmax(logits));
  PSD_ASSIGN_OR_RETURN(Tensor loss, Tensor::EmptyBeside(logits, Shape{}, logits.dtype()));
  const Rows shape = RowsOf(logits);
  kernel(StreamFor(logits), logits.dtype(), log_softmax.address(), AsLabels(there), shape.rows,
         shape.cols, loss.mutable_address());
  if (log_probabilities != nullptr) *log_probabilities = std::move(log_softmax);
  return loss;
}

absl::StatusOr<Tensor> CrossEntropyGradient(const Tensor& log_probabilities, const Tensor& labels,
                                            const Tensor& g) {
  PSD_RETURN_IF_ERROR(CheckLabels(log_probabilities, labels));
  PSD_RETURN_IF_ERROR(CheckNumbersPair(kCrossEntropyGradient.name, log_probabilities, g, false));
  if (g.NumElements() != 1) {
    return WithRemedy(
        absl::InvalidArgumentError(absl::StrCat("CrossEntropyGradient was given the gradient ",
                                                g.ToString(), " of its scalar result")),
        "give one element");
  }
  PSD_ASSIGN_OR_RETURN(CrossEntropyGradientKernel* const kernel,
                       KernelFor(kCrossEntropyGradient, log_probabilities));
  PSD_ASSIGN_OR_RETURN(const Tensor there, LabelsBeside(log_probabilities, labels));
  PSD_ASSIGN_OR_RETURN(const Tensor ys, log_probabilities.Contiguous());
  PSD_ASSIGN_OR_RETURN(Tensor out, Tensor::EmptyLike(log_probabilities));
  const Rows shape = RowsOf(log_probabilities);
  if (shape.rows == 0) return out;
  kernel(StreamFor(ys), ys.dtype(), ys.address(), AsLabels(there), g.address(), shape.rows,
         shape.cols, out.mutable_address());
  return out;
}

absl::StatusOr<Tensor> Mse(const Tensor& a, const Tensor& b) {
  PSD_RETURN_IF_ERROR(CheckNumbersPair("Mse", a, b, false));
  if (a.shape() != b.shape()) {
    return WithRemedy(
        absl::InvalidArgumentError(absl::StrCat("Mse was given ", a.ToString(), " and ",
                                                b.ToString(), ", which must be of one shape")),
        "reshape one");
  }
  PSD_ASSIGN_OR_RETURN(Tensor difference, Sub(a, b));
  PSD_ASSIGN_OR_RETURN(Tensor squares, Mul(difference, difference));
  return Mean(squares);
}

}  // namespace psd::ops
