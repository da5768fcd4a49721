#include "core/tensor/ops/elementwise.h"

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/remedy.h"
#include "core/tensor/ops/check.h"
#include "core/tensor/ops/shape_ops.h"
#include "kernels/elementwise.h"

namespace psd::ops {
namespace {

using kernels::BinaryOp;
using kernels::UnaryGradientOp;
using kernels::UnaryOp;

absl::string_view NameOf(BinaryOp op) {
  switch (op) {
    case BinaryOp::kAdd:
      return "Add";
    case BinaryOp::kSub:
      return "Sub";
    case BinaryOp::kMul:
      return "Mul";
    case BinaryOp::kDiv:
      return "Div";
  }
  return "";
}

// Describes how to loop over two arguments of the same (broadcast) shape. Axes are joined where
// both arguments allow it. One kernel call covers the last axis.
struct Plan {
  Strides extents;
  Strides a_steps;
  Strides b_steps;
};

Plan MakePlan(const Tensor& a, const Tensor& b) {
  Plan plan;
  for (int axis = 0; axis < a.rank(); ++axis) {
    const int64_t extent = a.shape()[axis];
    const int64_t a_step = a.strides()[axis];
    const int64_t b_step = b.strides()[axis];
    if (extent == 1) continue;
    if (!plan.extents.empty() && plan.a_steps.back() == a_step * extent &&
        plan.b_steps.back() == b_step * extent) {
      plan.extents.back() *= extent;
      plan.a_steps.back() = a_step;
      plan.b_steps.back() = b_step;
      continue;
    }
    plan.extents.push_back(extent);
    plan.a_steps.push_back(a_step);
    plan.b_steps.push_back(b_step);
  }
  if (plan.extents.empty()) {
    plan.extents.push_back(1);
    plan.a_steps.push_back(1);
    plan.b_steps.push_back(1);
  }
  return plan;
}

bool KernelTakes(const Plan& plan) {
  const int64_t a_step = plan.a_steps.back();
  const int64_t b_step = plan.b_steps.back();
  return (a_step == 1 && (b_step == 0 || b_step == 1)) || (a_step == 0 && b_step == 1);
}

template <typename T>
void RunPlan(BinaryOp op, const Plan& plan, const T* a, const T* b, T* out) {
  const int outer = static_cast<int>(plan.extents.size()) - 1;
  const int64_t row = plan.extents[outer];
  const size_t a_step = static_cast<size_t>(plan.a_steps[outer]);
  const size_t b_step = static_cast<size_t>(plan.b_steps[outer]);
  Strides index(outer, 0);
  int64_t a_at = 0;
  int64_t b_at = 0;
  while (true) {
    kernels::Binary(op, a + a_at, a_step, b + b_at, b_step, out, static_cast<size_t>(row));
    out += row;
    int axis = outer - 1;
    for (; axis >= 0; --axis) {
      a_at += plan.a_steps[axis];
      b_at += plan.b_steps[axis];
      if (++index[axis] < plan.extents[axis]) break;
      a_at -= plan.a_steps[axis] * plan.extents[axis];
      b_at -= plan.b_steps[axis] * plan.extents[axis];
      index[axis] = 0;
    }
    if (axis < 0) return;
  }
}

// Describes how a single kernel call can process two arguments: one of them is dense and has the
// result's shape, and the other is dense with that shape too or is one number.
struct OneCall {
  const Tensor* like = nullptr;  // has the result's shape; null if one call is not enough
  size_t a_step = 0;
  size_t b_step = 0;
};

OneCall AsOneCall(const Tensor& a, const Tensor& b) {
  const bool same = a.shape() == b.shape();
  if (same && a.IsContiguous() && b.IsContiguous()) return {&a, 1, 1};
  if (a.IsContiguous() && (b.rank() == 0 || (same && b.IsOneNumber()))) return {&a, 1, 0};
  if (b.IsContiguous() && (a.rank() == 0 || (same && a.IsOneNumber()))) return {&b, 0, 1};
  return {};
}

absl::StatusOr<Tensor> RunOneCall(BinaryOp op, const OneCall& call, const Tensor& a,
                                  const Tensor& b) {
  absl::StatusOr<Tensor> out = Tensor::EmptyLike(*call.like);
  if (!out.ok()) return out;
  WithNumber(a.dtype(), [&](auto zero) {
    using T = decltype(zero);
    kernels::Binary(op, a.data<T>(), call.a_step, b.data<T>(), call.b_step, out->mutable_data<T>(),
                    static_cast<size_t>(call.like->NumElements()));
    return 0;
  });
  return out;
}

absl::StatusOr<Tensor> RunWithPlan(BinaryOp op, const Tensor& a, const Tensor& b) {
  absl::StatusOr<Shape> shape = BroadcastShapes(a.shape(), b.shape());
  if (!shape.ok()) return Annotate(shape.status(), NameOf(op));
  PSD_ASSIGN_OR_RETURN(Tensor out, Tensor::Empty(*shape, a.dtype()));
  if (out.NumElements() == 0) return out;
  PSD_ASSIGN_OR_RETURN(Tensor x, BroadcastTo(a, *shape));
  PSD_ASSIGN_OR_RETURN(Tensor y, BroadcastTo(b, *shape));
  Plan plan = MakePlan(x, y);
  if (!KernelTakes(plan)) {
    PSD_ASSIGN_OR_RETURN(x, x.Contiguous());
    PSD_ASSIGN_OR_RETURN(y, y.Contiguous());
    plan = MakePlan(x, y);
  }
  WithNumber(a.dtype(), [&](auto zero) {
    using T = decltype(zero);
    RunPlan(op, plan, x.data<T>(), y.data<T>(), out.mutable_data<T>());
    return 0;
  });
  return out;
}

absl::StatusOr<Tensor> Binary(BinaryOp op, const Tensor& a, const Tensor& b) {
  const bool integers = op != BinaryOp::kDiv;
  if (!IsGoodPair(a, b, integers)) return PairError(NameOf(op), a, b, integers);
  const OneCall call = AsOneCall(a, b);
  return call.like != nullptr ? RunOneCall(op, call, a, b) : RunWithPlan(op, a, b);
}

// Returns `value` as a scalar tensor of the dtype of `like`.
absl::StatusOr<Tensor> Number(BinaryOp op, const Tensor& like, double value) {
  PSD_RETURN_IF_ERROR(CheckArithmetic(NameOf(op), like, op != BinaryOp::kDiv));
  // The ends of the range are powers of two, which doubles represent exactly.
  const double end = like.dtype() == DType::kI64 ? 0x1p63 : 0x1p31;
  const bool whole = value >= -end && value < end && std::trunc(value) == value;
  if (!IsFloating(like.dtype()) && !whole) {
    return WithRemedy(
        absl::InvalidArgumentError(absl::StrCat(NameOf(op), ": the number ", value,
                                                " is none of the dtype of ", like.ToString())),
        "give a whole number in its range, or cast the tensor");
  }
  return Tensor::Full(Shape{}, like.dtype(), value);
}

absl::StatusOr<Tensor> Binary(BinaryOp op, const Tensor& a, double b) {
  PSD_ASSIGN_OR_RETURN(Tensor number, Number(op, a, b));
  return Binary(op, a, number);
}

absl::StatusOr<Tensor> Binary(BinaryOp op, double a, const Tensor& b) {
  PSD_ASSIGN_OR_RETURN(Tensor number, Number(op, b, a));
  return Binary(op, number, b);
}

absl::StatusOr<Tensor> Unary(UnaryOp op, absl::string_view name, const Tensor& x) {
  PSD_RETURN_IF_ERROR(CheckArithmetic(name, x, false));
  PSD_ASSIGN_OR_RETURN(Tensor dense, x.Contiguous());
  PSD_ASSIGN_OR_RETURN(Tensor out, Tensor::Empty(x.shape(), x.dtype()));
  WithFloat(x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    kernels::Unary(op, dense.data<T>(), out.mutable_data<T>(),
                   static_cast<size_t>(out.NumElements()));
    return 0;
  });
  return out;
}

absl::Status CheckSameShape(absl::string_view name, const Tensor& a, const Tensor& b,
                            bool integers) {
  PSD_RETURN_IF_ERROR(CheckPair(name, a, b, integers));
  if (a.shape() == b.shape()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, " was given ", a.ToString(), " and ",
                                                 b.ToString(), ", which must be of one shape"));
}

absl::StatusOr<Tensor> UnaryGradient(UnaryGradientOp op, absl::string_view name, const Tensor& y,
                                     const Tensor& g) {
  PSD_RETURN_IF_ERROR(CheckSameShape(name, y, g, false));
  PSD_ASSIGN_OR_RETURN(Tensor ys, y.Contiguous());
  PSD_ASSIGN_OR_RETURN(Tensor gs, g.Contiguous());
  PSD_ASSIGN_OR_RETURN(Tensor out, Tensor::Empty(y.shape(), y.dtype()));
  WithFloat(y.dtype(), [&](auto zero) {
    using T = decltype(zero);
    kernels::UnaryGradient(op, ys.data<T>(), gs.data<T>(), out.mutable_data<T>(),
                           static_cast<size_t>(out.NumElements()));
    return 0;
  });
  return out;
}

}  // namespace

absl::StatusOr<Tensor> Add(const Tensor& a, const Tensor& b) {
  return Binary(BinaryOp::kAdd, a, b);
}
absl::StatusOr<Tensor> Sub(const Tensor& a, const Tensor& b) {
  return Binary(BinaryOp::kSub, a, b);
}
absl::StatusOr<Tensor> Mul(const Tensor& a, const Tensor& b) {
  return Binary(BinaryOp::kMul, a, b);
}
absl::StatusOr<Tensor> Div(const Tensor& a, const Tensor& b) {
  return Binary(BinaryOp::kDiv, a, b);
}

absl::StatusOr<Tensor> Add(const Tensor& a, double b) {
  return Binary(BinaryOp::kAdd, a, b);
}
absl::StatusOr<Tensor> Sub(const Tensor& a, double b) {
  return Binary(BinaryOp::kSub, a, b);
}
absl::StatusOr<Tensor> Sub(double a, const Tensor& b) {
  return Binary(BinaryOp::kSub, a, b);
}
absl::StatusOr<Tensor> Mul(const Tensor& a, double b) {
  return Binary(BinaryOp::kMul, a, b);
}
absl::StatusOr<Tensor> Div(const Tensor& a, double b) {
  return Binary(BinaryOp::kDiv, a, b);
}
absl::StatusOr<Tensor> Div(double a, const Tensor& b) {
  return Binary(BinaryOp::kDiv, a, b);
}

absl::StatusOr<Tensor> Neg(const Tensor& x) {
  PSD_RETURN_IF_ERROR(CheckArithmetic("Neg", x, true));
  if (IsFloating(x.dtype())) return Unary(UnaryOp::kNeg, "Neg", x);
  PSD_ASSIGN_OR_RETURN(Tensor dense, x.Contiguous());
  PSD_ASSIGN_OR_RETURN(Tensor out, Tensor::Empty(x.shape(), x.dtype()));
  const size_t count = static_cast<size_t>(x.NumElements());
  if (x.dtype() == DType::kI64) {
    kernels::Negate(dense.data<int64_t>(), out.mutable_data<int64_t>(), count);
  } else {
    kernels::Negate(dense.data<int32_t>(), out.mutable_data<int32_t>(), count);
  }
  return out;
}

absl::StatusOr<Tensor> Relu(const Tensor& x) {
  return Unary(UnaryOp::kRelu, "Relu", x);
}
absl::StatusOr<Tensor> Sigmoid(const Tensor& x) {
  return Unary(UnaryOp::kSigmoid, "Sigmoid", x);
}
absl::StatusOr<Tensor> Tanh(const Tensor& x) {
  return Unary(UnaryOp::kTanh, "Tanh", x);
}
absl::StatusOr<Tensor> Exp(const Tensor& x) {
  return Unary(UnaryOp::kExp, "Exp", x);
}
absl::StatusOr<Tensor> Log(const Tensor& x) {
  return Unary(UnaryOp::kLog, "Log", x);
}
absl::StatusOr<Tensor> Sqrt(const Tensor& x) {
  return Unary(UnaryOp::kSqrt, "Sqrt", x);
}

absl::StatusOr<Tensor> ReluGradient(const Tensor& y, const Tensor& g) {
  return UnaryGradient(UnaryGradientOp::kRelu, "ReluGradient", y, g);
}
absl::StatusOr<Tensor> SigmoidGradient(const Tensor& y, const Tensor& g) {
  return UnaryGradient(UnaryGradientOp::kSigmoid, "SigmoidGradient", y, g);
}
absl::StatusOr<Tensor> TanhGradient(const Tensor& y, const Tensor& g) {
  return UnaryGradient(UnaryGradientOp::kTanh, "TanhGradient", y, g);
}
absl::StatusOr<Tensor> SqrtGradient(const Tensor& y, const Tensor& g) {
  return UnaryGradient(UnaryGradientOp::kSqrt, "SqrtGradient", y, g);
}

absl::Status AddInPlace(Tensor& into, const Tensor& x) {
  PSD_RETURN_IF_ERROR(CheckSameShape("AddInPlace", into, x, true));
  PSD_CHECK(into.IsContiguous(), "AddInPlace needs a contiguous target");
  PSD_ASSIGN_OR_RETURN(Tensor dense, x.Contiguous());
  WithNumber(into.dtype(), [&](auto zero) {
    using T = decltype(zero);
    T* to = into.mutable_data<T>();
    kernels::Binary(BinaryOp::kAdd, to, 1, dense.data<T>(), 1, to,
                    static_cast<size_t>(into.NumElements()));
    return 0;
  });
  return absl::OkStatus();
}

}  // namespace psd::ops
