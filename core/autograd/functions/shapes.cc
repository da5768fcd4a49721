#include "core/autograd/functions/shapes.h"

#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/autograd/functions/function_node.h"
#include "core/base/status.h"
#include "core/tensor/copy_to.h"
#include "core/tensor/ops/cast.h"
#include "core/tensor/ops/reduce.h"
#include "core/tensor/ops/shape_ops.h"

namespace psd {
namespace {

// Returns zeros in the shape of `g` and where it is, except that the extent of `axis` is `extent`.
absl::StatusOr<Tensor> ZerosBeside(const Tensor& g, int64_t axis, int64_t extent) {
  Strides extents(g.shape().extents().begin(), g.shape().extents().end());
  extents[static_cast<size_t>(axis < 0 ? axis + g.rank() : axis)] = extent;
  PSD_ASSIGN_OR_RETURN(Shape shape, Shape::Checked(extents));
  return Tensor::Zeros(shape, g.dtype(), MemoryOf(g.device()));
}

// Returns `g` with `before` zeros in front of it and `behind` zeros behind it along `axis`.
absl::StatusOr<Tensor> Padded(const Tensor& g, int64_t axis, int64_t before, int64_t behind) {
  PSD_ASSIGN_OR_RETURN(Tensor front, ZerosBeside(g, axis, before));
  PSD_ASSIGN_OR_RETURN(Tensor back, ZerosBeside(g, axis, behind));
  return ops::Concat({front, g, back}, axis);
}

// Gives each argument its part of the gradient, as a view.
absl::Status Unconcat(const GradientCall& call, int64_t axis, const std::vector<int64_t>& extents) {
  int64_t begin = 0;
  for (size_t i = 0; i < extents.size(); ++i) {
    const int64_t end = begin + extents[i];
    if (call.Wants(i)) PSD_RETURN_IF_ERROR(call.Give(i, ops::Slice(call.g, axis, begin, end)));
    begin = end;
  }
  return absl::OkStatus();
}

}  // namespace

Variable Reshape(const Variable& x, absl::Span<const int64_t> extents) {
  if (!x.ok()) return x;
  return Record("Reshape", {&x}, ops::Reshape(x.tensor(), extents), Save(),
                [shape = x.shape()](const GradientCall& call) {
                  return call.Give(0, ops::Reshape(call.g, shape.extents()));
                });
}

Variable Transpose(const Variable& x, int64_t axis0, int64_t axis1) {
  if (!x.ok()) return x;
  return Record("Transpose", {&x}, ops::Transpose(x.tensor(), axis0, axis1), Save(),
                [axis0, axis1](const GradientCall& call) {
                  return call.Give(0, ops::Transpose(call.g, axis0, axis1));
                });
}

Variable Slice(const Variable& x, int64_t axis, int64_t begin, int64_t end) {
  if (!x.ok()) return x;
  absl::StatusOr<Tensor> part = ops::Slice(x.tensor(), axis, begin, end);
  if (!part.ok()) return Variable::Invalid(part.status());
  const int at = static_cast<int>(axis < 0 ? axis + x.shape().rank() : axis);
  const int64_t behind = x.shape()[at] - end;
  return Record("Slice", {&x}, std::move(part), Save(),
                [at, begin, behind](const GradientCall& call) {
                  return call.Give(0, Padded(call.g, at, begin, behind));
                });
}

Variable Concat(absl::Span<const Variable> parts, int64_t axis) {
  std::vector<const Variable*> pointers;
  for (const Variable& part : parts) pointers.push_back(&part);
  return Concat(pointers, axis);
}

Variable Concat(absl::Span<const Variable* const> parts, int64_t axis) {
  if (const Variable* invalid = FirstInvalid(parts)) return *invalid;
  std::vector<Tensor> tensors;
  for (const Variable* part : parts) tensors.push_back(part->tensor());
  absl::StatusOr<Tensor> whole = ops::Concat(tensors, axis);
  if (!whole.ok()) return Variable::Invalid(whole.status());
  const int at = static_cast<int>(axis < 0 ? axis + whole->rank() : axis);
  std::vector<int64_t> extents;
  for (const Variable* part : parts) extents.push_back(part->shape()[at]);
  return RecordList(
      "Concat", parts, std::move(whole), Save(),
      [at, extents](const GradientCall& call) { return Unconcat(call, at, extents); });
}

Variable BroadcastTo(const Variable& x, const Shape& shape) {
  if (!x.ok()) return x;
  return Record("BroadcastTo", {&x}, ops::BroadcastTo(x.tensor(), shape), Save(),
                [from = x.shape()](const GradientCall& call) {
                  return call.Give(0, ops::SumTo(call.g, from));
                });
}

Variable Cast(const Variable& x, DType dtype) {
  if (!x.ok()) return x;
  absl::StatusOr<Tensor> y = ops::Cast(x.tensor(), dtype);
  if (!y.ok()) return Variable::Invalid(y.status());
  if (dtype != DType::kF32 && dtype != DType::kF64) return Variable(*std::move(y));
  return Record("Cast", {&x}, std::move(y), Save(), [from = x.dtype()](const GradientCall& call) {
    return call.Give(0, ops::Cast(call.g, from));
  });
}

}  // namespace psd
