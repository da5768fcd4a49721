#include "core/tensor/ops/shape_ops.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/device.h"
#include "core/base/remedy.h"
#include "core/base/status.h"
#include "core/tensor/ops/check.h"

namespace psd::ops {
namespace {

// Returns `shape` with the extent of `axis` replaced.
Shape WithExtent(const Shape& shape, int axis, int64_t extent) {
  Strides extents(shape.extents().begin(), shape.extents().end());
  extents[axis] = extent;
  absl::StatusOr<Shape> changed = Shape::Checked(extents);
  PSD_CHECK(changed.ok(), "a part of a legal shape is legal");
  return *changed;
}

// The product of the extents of axes [begin, end).
int64_t ProductOf(const Shape& shape, int begin, int end) {
  int64_t product = 1;
  for (int axis = begin; axis < end; ++axis) product *= shape[axis];
  return product;
}

absl::Status CannotReshape(const Tensor& x, absl::Span<const int64_t> extents) {
  return WithRemedy(absl::InvalidArgumentError(absl::StrCat(
                        "Reshape: ", x.ToString(), " has ", x.NumElements(),
                        " elements and does not fit shape [", absl::StrJoin(extents, ", "), "]")),
                    "give extents with that product, one of them may be -1");
}

absl::StatusOr<Shape> ResolveShape(const Tensor& x, absl::Span<const int64_t> extents) {
  Strides resolved(extents.begin(), extents.end());
  auto open = std::find(resolved.begin(), resolved.end(), -1);
  if (open != resolved.end()) {
    *open = 1;
    PSD_ASSIGN_OR_RETURN(Shape rest, Shape::Checked(resolved));
    const int64_t known = rest.NumElements();
    if (known == 0 || x.NumElements() % known != 0) return CannotReshape(x, extents);
    *open = x.NumElements() / known;
  }
  PSD_ASSIGN_OR_RETURN(Shape shape, Shape::Checked(resolved));
  if (shape.NumElements() != x.NumElements()) return CannotReshape(x, extents);
  return shape;
}

// Copies a contiguous part into its place along `axis` of `whole`, which is on the same device.
absl::Status CopyPart(const Tensor& part, int axis, int64_t at, Tensor& whole) {
  const size_t item = ItemSize(part.dtype());
  const int64_t inner = ProductOf(part.shape(), axis + 1, part.rank());
  const int64_t outer = ProductOf(part.shape(), 0, axis);
  const size_t run = static_cast<size_t>(part.shape()[axis] * inner) * item;
  const size_t step = static_cast<size_t>(whole.shape()[axis] * inner) * item;
  Device* const device = whole.device();
  std::byte* to = whole.mutable_address() + static_cast<size_t>(at * inner) * item;
  for (int64_t i = 0; i < outer; ++i) {
    PSD_RETURN_IF_ERROR(CopyBytes(device, to + static_cast<size_t>(i) * step, device,
                                  part.address() + static_cast<size_t>(i) * run, run));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Tensor> Reshape(const Tensor& x, absl::Span<const int64_t> extents) {
  PSD_RETURN_IF_ERROR(CheckDefined("Reshape", x));
  PSD_ASSIGN_OR_RETURN(Shape shape, ResolveShape(x, extents));
  PSD_ASSIGN_OR_RETURN(Tensor dense, x.Contiguous());
  return dense.View(shape, ContiguousStrides(shape), 0);
}

absl::StatusOr<Tensor> Transpose(const Tensor& x, int64_t axis0, int64_t axis1) {
  PSD_RETURN_IF_ERROR(CheckDefined("Transpose", x));
  PSD_ASSIGN_OR_RETURN(int first, CheckAxis("Transpose", x, axis0));
  PSD_ASSIGN_OR_RETURN(int second, CheckAxis("Transpose", x, axis1));
  Strides extents(x.shape().extents().begin(), x.shape().extents().end());
  Strides strides = x.strides();
  std::swap(extents[first], extents[second]);
  std::swap(strides[first], strides[second]);
  PSD_ASSIGN_OR_RETURN(Shape shape, Shape::Checked(extents));
  return x.View(shape, strides, 0);
}

absl::StatusOr<Tensor> Slice(const Tensor& x, int64_t axis, int64_t begin, int64_t end) {
  PSD_RETURN_IF_ERROR(CheckDefined("Slice", x));
  PSD_ASSIGN_OR_RETURN(int at, CheckAxis("Slice", x, axis));
  if (begin < 0 || begin > end || end > x.shape()[at]) {
    return absl::InvalidArgumentError(
        absl::StrCat("Slice: [", begin, ", ", end, ") is no part of axis ", at, " of ",
                     x.ToString(), "; 0 <= begin <= end <= ", x.shape()[at], " must hold"));
  }
  const Shape shape = WithExtent(x.shape(), at, end - begin);
  // A view without elements needs no offset, and `begin` may be past the last element.
  const int64_t offset = shape.NumElements() == 0 ? 0 : begin * x.strides()[at];
  return x.View(shape, x.strides(), offset);
}

absl::StatusOr<Shape> ConcatShape(absl::Span<const Shape> shapes, int64_t axis) {
  if (shapes.empty())
    return WithRemedy(absl::InvalidArgumentError("Concat was given no tensors"),
                      "give at least one");
  const Shape& first = shapes[0];
  const int64_t at = axis < 0 ? axis + first.rank() : axis;
  if (at < 0 || at >= first.rank()) {
    return absl::InvalidArgumentError(
        absl::StrCat("Concat: axis ", axis, " does not exist in shape ", first.ToString()));
  }
  Strides extents(first.extents().begin(), first.extents().end());
  for (size_t i = 1; i < shapes.size(); ++i) {
    const Shape& shape = shapes[i];
    const int64_t extent = shape.rank() == first.rank() ? shape[static_cast<int>(at)] : 0;
    if (shape.rank() != first.rank() ||
        WithExtent(shape, static_cast<int>(at), 0) != WithExtent(first, static_cast<int>(at), 0)) {
      return WithRemedy(absl::InvalidArgumentError(absl::StrCat(
                            "Concat along axis ", at, ": shapes ", first.ToString(), " and ",
                            shape.ToString(), " (number ", i, ") must be equal on all other axes")),
                        "reshape or slice one");
    }
    if (__builtin_add_overflow(extents[at], extent, &extents[at])) {
      return absl::InvalidArgumentError(
          absl::StrCat("Concat: the extents along axis ", at, " add up to more than 2^63"));
    }
  }
  return Shape::Checked(extents);
}

absl::StatusOr<Tensor> Concat(absl::Span<const Tensor> parts, int64_t axis, Allocator* allocator) {
  std::vector<Shape> shapes;
  for (const Tensor& part : parts) {
    PSD_RETURN_IF_ERROR(CheckDefined("Concat", part));
    if (part.dtype() != parts[0].dtype()) {
      return WithRemedy(
          absl::InvalidArgumentError(absl::StrCat("Concat was given ", parts[0].ToString(), " and ",
                                                  part.ToString(), ", which differ in dtype")),
          "cast one of them");
    }
    if (!AreTogether(parts[0], part))
      return MixedDevices("Concat", parts[0].device(), part.device());
    shapes.push_back(part.shape());
  }
  PSD_ASSIGN_OR_RETURN(Shape shape, ConcatShape(shapes, axis));
  PSD_ASSIGN_OR_RETURN(int at, CheckAxis("Concat", parts[0], axis));
  PSD_ASSIGN_OR_RETURN(Tensor whole, allocator == nullptr
                                         ? Tensor::EmptyBeside(parts[0], shape, parts[0].dtype())
                                         : Tensor::Empty(shape, parts[0].dtype(), allocator));
  if (!AreTogether(parts[0], whole))
    return MixedDevices("Concat", parts[0].device(), whole.device());
  int64_t position = 0;
  for (const Tensor& part : parts) {
    PSD_ASSIGN_OR_RETURN(Tensor dense, part.Contiguous());
    PSD_RETURN_IF_ERROR(CopyPart(dense, at, position, whole));
    position += part.shape()[at];
  }
  return whole;
}

absl::StatusOr<Tensor> BroadcastTo(const Tensor& x, const Shape& shape) {
  PSD_RETURN_IF_ERROR(CheckDefined("BroadcastTo", x));
  if (x.rank() == 0) return x.Repeated(shape);
  const int added = shape.rank() - x.rank();
  absl::StatusOr<Shape> both = BroadcastShapes(x.shape(), shape);
  if (!both.ok() || *both != shape) {
    return absl::InvalidArgumentError(absl::StrCat("BroadcastTo: ", x.ToString(),
                                                   " does not broadcast to ", shape.ToString(),
                                                   "; only axes of extent 1 are repeated"));
  }
  Strides strides(shape.rank(), 0);
  for (int axis = 0; axis < x.rank(); ++axis)
    if (x.shape()[axis] == shape[axis + added]) strides[axis + added] = x.strides()[axis];
  return x.View(shape, strides, 0);
}

}  // namespace psd::ops
