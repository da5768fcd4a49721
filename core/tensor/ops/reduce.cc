#include "core/tensor/ops/reduce.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/remedy.h"
#include "core/tensor/ops/check.h"
#include "core/tensor/ops/elementwise.h"
#include "core/tensor/ops/shape_ops.h"
#include "kernels/reduce.h"

namespace psd::ops {
namespace {

// The shape of a contiguous tensor seen as [outer, length, inner], where `length` is the extent of
// one axis.
struct AroundAxis {
  size_t outer = 1;
  size_t length = 1;
  size_t inner = 1;
};

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

struct MaxArguments {
  Tensor dense;
  AroundAxis around;
  Shape result;
};

absl::StatusOr<MaxArguments> CheckMax(absl::string_view op, const Tensor& x, int64_t axis,
                                      bool keepdim) {
  PSD_RETURN_IF_ERROR(CheckArithmetic(op, x, true));
  PSD_ASSIGN_OR_RETURN(int at, CheckAxis(op, x, axis));
  if (x.shape()[at] == 0) {
    return WithRemedy(absl::InvalidArgumentError(absl::StrCat(
                          op, ": axis ", at, " of ", x.ToString(), " is empty and has no maximum")),
                      "test its extent");
  }
  MaxArguments arguments;
  arguments.around = Around(x.shape(), at);
  PSD_ASSIGN_OR_RETURN(arguments.result, ReducedShape(x.shape(), at, keepdim));
  PSD_ASSIGN_OR_RETURN(arguments.dense, x.Contiguous());
  return arguments;
}

}  // namespace

absl::StatusOr<Tensor> Sum(const Tensor& x) {
  PSD_RETURN_IF_ERROR(CheckArithmetic("Sum", x, true));
  if (!x.IsContiguous()) {
    PSD_ASSIGN_OR_RETURN(const Tensor dense, x.Clone());
    return Sum(dense);
  }
  absl::StatusOr<Tensor> out = Tensor::Empty(Shape{}, x.dtype());
  if (!out.ok()) return out;
  WithNumber(x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    *out->mutable_data<T>() = kernels::Sum(x.data<T>(), static_cast<size_t>(x.NumElements()));
    return 0;
  });
  return out;
}

absl::StatusOr<Tensor> Sum(const Tensor& x, int64_t axis, bool keepdim) {
  PSD_RETURN_IF_ERROR(CheckArithmetic("Sum", x, true));
  PSD_ASSIGN_OR_RETURN(int at, CheckAxis("Sum", x, axis));
  PSD_ASSIGN_OR_RETURN(Shape shape, ReducedShape(x.shape(), at, keepdim));
  PSD_ASSIGN_OR_RETURN(Tensor dense, x.Contiguous());
  PSD_ASSIGN_OR_RETURN(Tensor out, Tensor::Empty(shape, x.dtype()));
  WithNumber(x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    SumAround(dense.data<T>(), Around(x.shape(), at), out.mutable_data<T>());
    return 0;
  });
  return out;
}

absl::StatusOr<Tensor> Mean(const Tensor& x) {
  PSD_RETURN_IF_ERROR(CheckArithmetic("Mean", x, false));
  PSD_ASSIGN_OR_RETURN(Tensor sum, Sum(x));
  return Div(sum, static_cast<double>(x.NumElements()));
}

absl::StatusOr<Tensor> Mean(const Tensor& x, int64_t axis, bool keepdim) {
  PSD_RETURN_IF_ERROR(CheckArithmetic("Mean", x, false));
  PSD_ASSIGN_OR_RETURN(int at, CheckAxis("Mean", x, axis));
  PSD_ASSIGN_OR_RETURN(Tensor sum, Sum(x, at, keepdim));
  return Div(sum, static_cast<double>(x.shape()[at]));
}

absl::StatusOr<Tensor> Max(const Tensor& x, int64_t axis, bool keepdim) {
  PSD_ASSIGN_OR_RETURN(MaxArguments arguments, CheckMax("Max", x, axis, keepdim));
  PSD_ASSIGN_OR_RETURN(Tensor out, Tensor::Empty(arguments.result, x.dtype()));
  WithNumber(x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    T* to = out.mutable_data<T>();
    const size_t step = arguments.around.inner;
    VisitMaxima(arguments.dense.data<T>(), arguments.around,
                [&](const T* first, size_t i, size_t best) { to[i] = first[best * step]; });
    return 0;
  });
  return out;
}

absl::StatusOr<Tensor> ArgMax(const Tensor& x, int64_t axis, bool keepdim) {
  PSD_ASSIGN_OR_RETURN(MaxArguments arguments, CheckMax("ArgMax", x, axis, keepdim));
  PSD_ASSIGN_OR_RETURN(Tensor out, Tensor::Empty(arguments.result, DType::kI64));
  int64_t* to = out.mutable_data<int64_t>();
  WithNumber(x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    VisitMaxima(arguments.dense.data<T>(), arguments.around,
                [to](const T*, size_t i, size_t best) { to[i] = static_cast<int64_t>(best); });
    return 0;
  });
  return out;
}

absl::StatusOr<Tensor> SumTo(const Tensor& x, const Shape& shape) {
  PSD_RETURN_IF_ERROR(CheckArithmetic("SumTo", x, true));
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
