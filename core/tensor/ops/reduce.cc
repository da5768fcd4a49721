#include "core/tensor/ops/reduce.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/remedy.h"
#include "core/tensor/ops/check.h"
#include "core/tensor/ops/elementwise.h"
#include "core/tensor/ops/kernels.h"
#include "core/tensor/ops/shape_ops.h"

namespace psd::ops {
namespace {

AroundAxis Around(const Shape& shape, int axis) {
  AroundAxis around;
  for (int i = 0; i < axis; ++i) around.outer *= static_cast<size_t>(shape[i]);
  around.length = static_cast<size_t>(shape[axis]);
  for (int i = axis + 1; i < shape.rank(); ++i) around.inner *= static_cast<size_t>(shape[i]);
  return around;
}

absl::StatusOr<Shape> ReducedShape(const Shape& shape, int axis, bool keepdim) {
  Strides extents(shape.extents().begin(), shape.extents().end());
  if (keepdim) {
    extents[axis] = 1;
  } else {
    extents.erase(extents.begin() + axis);
  }
  return Shape::Checked(extents);
}

// Reduces `x` to a tensor of the shape `result`.
absl::StatusOr<Tensor> Reduce(const ReduceName& op, const Tensor& x, const AroundAxis& around,
                              const Shape& result, DType dtype) {
  PSD_ASSIGN_OR_RETURN(ReduceKernel* const kernel, KernelFor(op, x));
  PSD_ASSIGN_OR_RETURN(const Tensor dense, x.Contiguous());
  PSD_ASSIGN_OR_RETURN(Tensor out, Tensor::EmptyBeside(x, result, dtype));
  kernel(StreamFor(x), x.dtype(), dense.address(), around, out.mutable_address());
  return out;
}

absl::StatusOr<Tensor> Maximum(const ReduceName& op, const Tensor& x, int64_t axis, bool keepdim,
                               DType dtype) {
  PSD_RETURN_IF_ERROR(CheckNumbers(op.name, x, true));
  PSD_ASSIGN_OR_RETURN(int at, CheckAxis(op.name, x, axis));
  if (x.shape()[at] == 0) {
    return WithRemedy(
        absl::InvalidArgumentError(absl::StrCat(op.name, ": axis ", at, " of ", x.ToString(),
                                                " is empty and has no maximum")),
        "test its extent");
  }
  PSD_ASSIGN_OR_RETURN(const Shape result, ReducedShape(x.shape(), at, keepdim));
  return Reduce(op, x, Around(x.shape(), at), result, dtype);
}

}  // namespace

absl::StatusOr<Tensor> Sum(const Tensor& x) {
  PSD_RETURN_IF_ERROR(CheckNumbers(kSum.name, x, true));
  return Reduce(kSum, x, {1, static_cast<size_t>(x.NumElements()), 1}, Shape{}, x.dtype());
}

absl::StatusOr<Tensor> Sum(const Tensor& x, int64_t axis, bool keepdim) {
  PSD_RETURN_IF_ERROR(CheckNumbers(kSum.name, x, true));
  PSD_ASSIGN_OR_RETURN(int at, CheckAxis(kSum.name, x, axis));
  PSD_ASSIGN_OR_RETURN(Shape shape, ReducedShape(x.shape(), at, keepdim));
  return Reduce(kSum, x, Around(x.shape(), at), shape, x.dtype());
}

absl::StatusOr<Tensor> Mean(const Tensor& x) {
  PSD_RETURN_IF_ERROR(CheckNumbers("Mean", x, false));
  PSD_ASSIGN_OR_RETURN(Tensor sum, Sum(x));
  return Div(sum, static_cast<double>(x.NumElements()));
}

absl::StatusOr<Tensor> Mean(const Tensor& x, int64_t axis, bool keepdim) {
  PSD_RETURN_IF_ERROR(CheckNumbers("Mean", x, false));
  PSD_ASSIGN_OR_RETURN(int at, CheckAxis("Mean", x, axis));
  PSD_ASSIGN_OR_RETURN(Tensor sum, Sum(x, at, keepdim));
  return Div(sum, static_cast<double>(x.shape()[at]));
}

absl::StatusOr<Tensor> Max(const Tensor& x, int64_t axis, bool keepdim) {
  return Maximum(kMax, x, axis, keepdim, x.dtype());
}

absl::StatusOr<Tensor> ArgMax(const Tensor& x, int64_t axis, bool keepdim) {
  return Maximum(kArgMax, x, axis, keepdim, DType::kI64);
}

absl::StatusOr<Tensor> SumTo(const Tensor& x, const Shape& shape) {
  PSD_RETURN_IF_ERROR(CheckNumbers("SumTo", x, true));
  if (x.shape() == shape) return x;
  absl::StatusOr<Shape> both = BroadcastShapes(x.shape(), shape);
  if (!both.ok() || *both != x.shape()) {
    return WithRemedy(absl::InvalidArgumentError(absl::StrCat(
                          "SumTo: ", shape.ToString(), " does not broadcast to ", x.ToString())),
                      "give a shape that does");
  }
  Tensor sum = x;
  while (sum.rank() > shape.rank()) {
    PSD_ASSIGN_OR_RETURN(sum, Sum(sum, 0));
  }
  for (int axis = 0; axis < shape.rank(); ++axis) {
    if (sum.shape()[axis] == shape[axis]) continue;
    PSD_ASSIGN_OR_RETURN(sum, Sum(sum, axis, true));
  }
  return sum;
}

}  // namespace psd::ops
