#include "core/tensor/ops/elementwise.h"

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/device.h"
#include "core/base/remedy.h"
#include "core/tensor/ops/check.h"
#include "core/tensor/ops/kernels.h"
#include "core/tensor/ops/shape_ops.h"

namespace psd::ops {
namespace {

// Whether the operator also takes integers.
bool TakesIntegers(const BinaryName& op) {
  return op.slot != kDiv.slot;
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

// Describes how a single kernel call can process two arguments: one of them is dense and has the
// result's shape, and the other is dense with that shape too or is one number.
struct OneCall {
  const Tensor* like = nullptr;  // has the result's shape; null if one call is not enough
  int64_t a_step = 0;
  int64_t b_step = 0;
};

OneCall AsOneCall(const Tensor& a, const Tensor& b) {
  const bool same = a.shape() == b.shape();
  if (same && a.IsContiguous() && b.IsContiguous()) return {&a, 1, 1};
  if (a.IsContiguous() && (b.rank() == 0 || (same && b.IsOneNumber()))) return {&a, 1, 0};
  if (b.IsContiguous() && (a.rank() == 0 || (same && a.IsOneNumber()))) return {&b, 0, 1};
  return {};
}

absl::StatusOr<Tensor> RunOneCall(const BinaryName& op, const OneCall& call, const Tensor& a,
                                  const Tensor& b) {
  PSD_ASSIGN_OR_RETURN(BinaryKernel* const kernel, KernelFor(op, a));
  absl::StatusOr<Tensor> out = Tensor::EmptyLike(*call.like);
  const int64_t count = call.like->NumElements();
  if (!out.ok() || count == 0) return out;
  kernel(StreamFor(a), {a.dtype(),
                        {&count, 1},
                        {&call.a_step, 1},
                        {&call.b_step, 1},
                        a.address(),
                        b.address(),
                        out->mutable_address()});
  return out;
}

absl::StatusOr<Tensor> RunWithPlan(const BinaryName& op, const Tensor& a, const Tensor& b) {
  PSD_ASSIGN_OR_RETURN(BinaryKernel* const kernel, KernelFor(op, a));
  absl::StatusOr<Shape> shape = BroadcastShapes(a.shape(), b.shape());
  if (!shape.ok()) return Annotate(shape.status(), op.name);
  PSD_ASSIGN_OR_RETURN(Tensor out, Tensor::EmptyBeside(a, *shape, a.dtype()));
  if (out.NumElements() == 0) return out;
  PSD_ASSIGN_OR_RETURN(Tensor x, BroadcastTo(a, *shape));
  PSD_ASSIGN_OR_RETURN(Tensor y, BroadcastTo(b, *shape));
  Plan plan = MakePlan(x, y);
  if (!KernelTakes(plan)) {
    PSD_ASSIGN_OR_RETURN(x, x.Contiguous());
    PSD_ASSIGN_OR_RETURN(y, y.Contiguous());
    plan = MakePlan(x, y);
  }
  kernel(StreamFor(a), {a.dtype(), plan.extents, plan.a_steps, plan.b_steps, x.address(),
                        y.address(), out.mutable_address()});
  return out;
}

absl::StatusOr<Tensor> Binary(const BinaryName& op, const Tensor& a, const Tensor& b) {
  const bool integers = TakesIntegers(op);
  if (!IsGoodPair(a, b, integers)) return PairError(op.name, a, b, integers);
  const OneCall call = AsOneCall(a, b);
  return call.like != nullptr ? RunOneCall(op, call, a, b) : RunWithPlan(op, a, b);
}

// Returns `value` as a scalar tensor of the dtype of `like`, on its device.
absl::StatusOr<Tensor> Number(const BinaryName& op, const Tensor& like, double value) {
  PSD_RETURN_IF_ERROR(CheckNumbers(op.name, like, TakesIntegers(op)));
  // The ends of the range are powers of two, which doubles represent exactly.
  const double end = like.dtype() == DType::kI64 ? 0x1p63 : 0x1p31;
  const bool whole = value >= -end && value < end && std::trunc(value) == value;
  if (!IsFloating(like.dtype()) && !whole) {
    return WithRemedy(
        absl::InvalidArgumentError(absl::StrCat(op.name, ": the number ", value,
                                                " is none of the dtype of ", like.ToString())),
        "give a whole number in its range, or cast the tensor");
  }
  return Tensor::Full(Shape{}, like.dtype(), value,
                      like.OnHost() ? nullptr : &like.device()->memory());
}

absl::StatusOr<Tensor> Binary(const BinaryName& op, const Tensor& a, double b) {
  PSD_ASSIGN_OR_RETURN(Tensor number, Number(op, a, b));
  return Binary(op, a, number);
}

absl::StatusOr<Tensor> Binary(const BinaryName& op, double a, const Tensor& b) {
  PSD_ASSIGN_OR_RETURN(Tensor number, Number(op, b, a));
  return Binary(op, number, b);
}

absl::StatusOr<Tensor> Unary(const UnaryName& op, const Tensor& x, bool integers = false) {
  PSD_RETURN_IF_ERROR(CheckNumbers(op.name, x, integers));
  PSD_ASSIGN_OR_RETURN(UnaryKernel* const kernel, KernelFor(op, x));
  PSD_ASSIGN_OR_RETURN(Tensor dense, x.Contiguous());
  PSD_ASSIGN_OR_RETURN(Tensor out, Tensor::EmptyLike(x));
  kernel(StreamFor(x), x.dtype(), dense.address(), out.mutable_address(),
         static_cast<size_t>(out.NumElements()));
  return out;
}

absl::Status CheckSameShape(absl::string_view name, const Tensor& a, const Tensor& b,
                            bool integers) {
  PSD_RETURN_IF_ERROR(CheckNumbersPair(name, a, b, integers));
  if (a.shape() == b.shape()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, " was given ", a.ToString(), " and ",
                                                 b.ToString(), ", which must be of one shape"));
}

absl::StatusOr<Tensor> UnaryGradient(const UnaryGradientName& op, const Tensor& y,
                                     const Tensor& g) {
  PSD_RETURN_IF_ERROR(CheckSameShape(op.name, y, g, false));
  PSD_ASSIGN_OR_RETURN(UnaryGradientKernel* const kernel, KernelFor(op, y));
  PSD_ASSIGN_OR_RETURN(Tensor ys, y.Contiguous());
  PSD_ASSIGN_OR_RETURN(Tensor gs, g.Contiguous());
  PSD_ASSIGN_OR_RETURN(Tensor out, Tensor::EmptyLike(y));
  kernel(StreamFor(y), y.dtype(), ys.address(), gs.address(), out.mutable_address(),
         static_cast<size_t>(out.NumElements()));
  return out;
}

}  // namespace

absl::StatusOr<Tensor> Add(const Tensor& a, const Tensor& b) {
  return Binary(kAdd, a, b);
}
absl::StatusOr<Tensor> Sub(const Tensor& a, const Tensor& b) {
  return Binary(kSub, a, b);
}
absl::StatusOr<Tensor> Mul(const Tensor& a, const Tensor& b) {
  return Binary(kMul, a, b);
}
absl::StatusOr<Tensor> Div(const Tensor& a, const Tensor& b) {
  return Binary(kDiv, a, b);
}

absl::StatusOr<Tensor> Add(const Tensor& a, double b) {
  return Binary(kAdd, a, b);
}
absl::StatusOr<Tensor> Sub(const Tensor& a, double b) {
  return Binary(kSub, a, b);
}
absl::StatusOr<Tensor> Sub(double a, const Tensor& b) {
  return Binary(kSub, a, b);
}
absl::StatusOr<Tensor> Mul(const Tensor& a, double b) {
  return Binary(kMul, a, b);
}
absl::StatusOr<Tensor> Div(const Tensor& a, double b) {
  return Binary(kDiv, a, b);
}
absl::StatusOr<Tensor> Div(double a, const Tensor& b) {
  return Binary(kDiv, a, b);
}

absl::StatusOr<Tensor> Neg(const Tensor& x) {
  return Unary(kNeg, x, /*integers=*/true);
}

absl::StatusOr<Tensor> Relu(const Tensor& x) {
  return Unary(kRelu, x);
}
absl::StatusOr<Tensor> Sigmoid(const Tensor& x) {
  return Unary(kSigmoid, x);
}
absl::StatusOr<Tensor> Tanh(const Tensor& x) {
  return Unary(kTanh, x);
}
absl::StatusOr<Tensor> Exp(const Tensor& x) {
  return Unary(kExp, x);
}
absl::StatusOr<Tensor> Log(const Tensor& x) {
  return Unary(kLog, x);
}
absl::StatusOr<Tensor> Sqrt(const Tensor& x) {
  return Unary(kSqrt, x);
}

absl::StatusOr<Tensor> ReluGradient(const Tensor& y, const Tensor& g) {
  return UnaryGradient(kReluGradient, y, g);
}
absl::StatusOr<Tensor> SigmoidGradient(const Tensor& y, const Tensor& g) {
  return UnaryGradient(kSigmoidGradient, y, g);
}
absl::StatusOr<Tensor> TanhGradient(const Tensor& y, const Tensor& g) {
  return UnaryGradient(kTanhGradient, y, g);
}
absl::StatusOr<Tensor> SqrtGradient(const Tensor& y, const Tensor& g) {
  return UnaryGradient(kSqrtGradient, y, g);
}

absl::Status AddInPlace(Tensor& into, const Tensor& x) {
  PSD_RETURN_IF_ERROR(CheckSameShape("AddInPlace", into, x, true));
  PSD_CHECK(into.IsContiguous(), "AddInPlace needs a contiguous target");
  PSD_ASSIGN_OR_RETURN(BinaryKernel* const kernel, KernelFor(kAdd, into));
  PSD_ASSIGN_OR_RETURN(Tensor dense, x.Contiguous());
  const int64_t count = into.NumElements();
  const int64_t step = 1;
  if (count == 0) return absl::OkStatus();
  kernel(StreamFor(into), {into.dtype(),
                           {&count, 1},
                           {&step, 1},
                           {&step, 1},
                           into.address(),
                           dense.address(),
                           into.mutable_address()});
  return absl::OkStatus();
}

}  // namespace psd::ops
