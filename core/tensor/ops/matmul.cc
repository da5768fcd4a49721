#include "core/tensor/ops/matmul.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/device.h"
#include "core/base/remedy.h"
#include "core/base/status.h"
#include "core/tensor/ops/check.h"
#include "core/tensor/ops/kernels.h"

namespace psd::ops {
namespace {

// A tensor of rank 2 in a layout that the kernel can read: its rows or its columns are dense.
struct Operand {
  Tensor tensor;
  int64_t stride = 1;
  bool transposed = false;

  Matrix matrix() const { return {tensor.address(), stride, transposed}; }
};

// Whether the elements of each row are adjacent in memory and rows do not overlap. Sets `stride`,
// the distance of the rows.
bool RowsAreDense(int64_t rows, int64_t cols, int64_t row_stride, int64_t col_stride,
                  int64_t& stride) {
  if (cols > 1 && col_stride != 1) return false;
  const int64_t least = std::max<int64_t>(cols, 1);
  stride = rows > 1 ? row_stride : least;
  return stride >= least;
}

absl::StatusOr<Operand> ToOperand(const Tensor& x, bool transpose) {
  const Shape& shape = x.shape();
  const Strides& strides = x.strides();
  Operand operand{x, 1, transpose};
  if (RowsAreDense(shape[0], shape[1], strides[0], strides[1], operand.stride)) return operand;
  if (RowsAreDense(shape[1], shape[0], strides[1], strides[0], operand.stride)) {
    operand.transposed = !transpose;
    return operand;
  }
  PSD_ASSIGN_OR_RETURN(operand.tensor, x.Contiguous());
  operand.stride = std::max<int64_t>(shape[1], 1);
  return operand;
}

absl::Status CheckMatrices(absl::string_view op, const Tensor& a, const Tensor& b) {
  PSD_RETURN_IF_ERROR(CheckNumbersPair(op, a, b, false));
  if (a.rank() == 2 && b.rank() == 2) return absl::OkStatus();
  return WithRemedy(
      absl::InvalidArgumentError(absl::StrCat(op, " was given ", a.ToString(), " and ",
                                              b.ToString(), ", but takes tensors of two axes")),
      "reshape them");
}

// Computes out = a * b, or out += a * b if `adds`.
absl::Status Multiply(const Tensor& a, const Tensor& b, bool transpose_a, bool transpose_b,
                      bool adds, Tensor& out) {
  if (out.NumElements() == 0) return absl::OkStatus();
  PSD_ASSIGN_OR_RETURN(MatmulKernel* const kernel, KernelFor(kMatmul, out));
  const int64_t inner = a.shape()[transpose_a ? 0 : 1];
  PSD_ASSIGN_OR_RETURN(Operand left, ToOperand(a, transpose_a));
  PSD_ASSIGN_OR_RETURN(Operand right, ToOperand(b, transpose_b));
  return kernel(StreamFor(out), out.dtype(), out.shape()[0], out.shape()[1], inner, left.matrix(),
                right.matrix(), adds, out.mutable_address());
}

absl::Status CheckBias(const Tensor& w, const Tensor& b) {
  PSD_RETURN_IF_ERROR(CheckNumbersPair("Linear", w, b, false));
  if (b.rank() == 1 && b.shape()[0] == w.shape()[0]) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("Linear: the bias ", b.ToString(),
                                                 " does not fit the weight ", w.ToString(),
                                                 "; it must have shape [", w.shape()[0], "]"));
}

// Copies `b` into every row of `out`.
absl::Status FillRows(const Tensor& b, Tensor& out) {
  PSD_ASSIGN_OR_RETURN(Tensor dense, b.Contiguous());
  const size_t bytes = dense.NumBytes();
  if (bytes == 0) return absl::OkStatus();
  Device* const device = out.device();
  std::byte* to = out.mutable_address();
  for (int64_t row = 0; row < out.shape()[0]; ++row, to += bytes)
    PSD_RETURN_IF_ERROR(CopyBytes(device, to, device, dense.address(), bytes));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Tensor> Matmul(const Tensor& a, const Tensor& b, bool transpose_a,
                              bool transpose_b) {
  PSD_RETURN_IF_ERROR(CheckMatrices("Matmul", a, b));
  const int64_t rows = a.shape()[transpose_a ? 1 : 0];
  const int64_t cols = b.shape()[transpose_b ? 0 : 1];
  if (a.shape()[transpose_a ? 0 : 1] != b.shape()[transpose_b ? 1 : 0]) {
    return WithRemedy(absl::InvalidArgumentError(absl::StrCat(
                          "Matmul: ", transpose_a ? "transposed " : "", a.ToString(), " times ",
                          transpose_b ? "transposed " : "", b.ToString(),
                          ": the first one's columns must be as many as the second one's rows")),
                      "transpose one");
  }
  const int64_t extents[] = {rows, cols};
  PSD_ASSIGN_OR_RETURN(Shape shape, Shape::Checked(extents));
  PSD_ASSIGN_OR_RETURN(Tensor out, Tensor::EmptyBeside(a, shape, a.dtype()));
  PSD_RETURN_IF_ERROR(Multiply(a, b, transpose_a, transpose_b, false, out));
  return out;
}

absl::StatusOr<Tensor> Linear(const Tensor& x, const Tensor& w, const Tensor& b) {
  PSD_RETURN_IF_ERROR(CheckMatrices("Linear", x, w));
  if (x.shape()[1] != w.shape()[1]) {
    return absl::InvalidArgumentError(absl::StrCat("Linear: the input ", x.ToString(),
                                                   " does not fit the weight ", w.ToString(),
                                                   "; the input needs ", w.shape()[1], " columns"));
  }
  if (b.defined()) PSD_RETURN_IF_ERROR(CheckBias(w, b));
  const int64_t extents[] = {x.shape()[0], w.shape()[0]};
  PSD_ASSIGN_OR_RETURN(Shape shape, Shape::Checked(extents));
  PSD_ASSIGN_OR_RETURN(Tensor out, Tensor::EmptyBeside(x, shape, x.dtype()));
  if (b.defined()) PSD_RETURN_IF_ERROR(FillRows(b, out));
  PSD_RETURN_IF_ERROR(Multiply(x, w, false, true, b.defined(), out));
  return out;
}

}  // namespace psd::ops
