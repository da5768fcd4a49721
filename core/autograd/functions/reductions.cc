#include "core/autograd/functions/reductions.h"

#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/autograd/functions/function_node.h"
#include "core/base/status.h"
#include "core/tensor/ops/elementwise.h"
#include "core/tensor/ops/reduce.h"
#include "core/tensor/ops/shape_ops.h"

namespace psd {
namespace {

// Records a reduction over all elements, whose gradient is g / divisor for each element. The
// gradient is a view in which every element is the same number in memory.
Variable OverAll(absl::string_view name, const Variable& x, absl::StatusOr<Tensor>&& y,
                 double divisor) {
  return Record(name, {&x}, std::move(y), Save(),
                [shape = x.shape(), divisor](const GradientCall& call) -> absl::Status {
                  if (divisor == 1) return call.Give(0, ops::BroadcastTo(call.g, shape));
                  PSD_ASSIGN_OR_RETURN(Tensor share, ops::Div(call.g, divisor));
                  return call.Give(0, ops::BroadcastTo(share, shape));
                });
}

Variable AlongAxis(absl::string_view name, const Variable& x, absl::StatusOr<Tensor> y,
                   int64_t axis, bool mean) {
  if (!y.ok()) return Variable::Invalid(y.status());
  const int at = static_cast<int>(axis < 0 ? axis + x.shape().rank() : axis);
  return Record(name, {&x}, std::move(y), Save(),
                [shape = x.shape(), at, mean](const GradientCall& call) -> absl::Status {
                  Strides kept(shape.extents().begin(), shape.extents().end());
                  kept[at] = 1;
                  PSD_ASSIGN_OR_RETURN(Tensor share, ops::Reshape(call.g, kept));
                  if (mean) {
                    PSD_ASSIGN_OR_RETURN(share, ops::Div(share, static_cast<double>(shape[at])));
                  }
                  return call.Give(0, ops::BroadcastTo(share, shape));
                });
}

}  // namespace

Variable Sum(const Variable& x) {
  if (!x.ok()) return x;
  return OverAll("Sum", x, ops::Sum(x.tensor()), 1);
}

Variable Mean(const Variable& x) {
  if (!x.ok()) return x;
  return OverAll("Mean", x, ops::Mean(x.tensor()), static_cast<double>(x.tensor().NumElements()));
}

Variable Sum(const Variable& x, int64_t axis, bool keepdim) {
  if (!x.ok()) return x;
  return AlongAxis("Sum", x, ops::Sum(x.tensor(), axis, keepdim), axis, false);
}

Variable Mean(const Variable& x, int64_t axis, bool keepdim) {
  if (!x.ok()) return x;
  return AlongAxis("Mean", x, ops::Mean(x.tensor(), axis, keepdim), axis, true);
}

}  // namespace psd
