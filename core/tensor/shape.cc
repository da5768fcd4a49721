#include "core/tensor/shape.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/remedy.h"
#include "core/base/status.h"

namespace psd {
namespace {

constexpr int64_t kMaxElements = (int64_t{1} << 62) / 8;

std::string ExtentsToString(absl::Span<const int64_t> extents) {
  return absl::StrCat("[", absl::StrJoin(extents, ", "), "]");
}

absl::Status CheckExtents(absl::Span<const int64_t> extents) {
  if (extents.size() > Shape::kMaxRank) {
    return absl::InvalidArgumentError(absl::StrCat("a shape of ", extents.size(), " axes; at most ",
                                                   Shape::kMaxRank, " are supported"));
  }
  int64_t product = 1;
  for (int64_t extent : extents) {
    if (extent < 0) {
      return absl::InvalidArgumentError(absl::StrCat("shape ", ExtentsToString(extents),
                                                     " has the negative extent ", extent,
                                                     "; extents are 0 or more"));
    }
    // Extents of 0 are left out of the product, because strides are products of the other extents
    // and must not overflow either.
    if (extent > 1 && product > kMaxElements / extent) {
      return absl::InvalidArgumentError(absl::StrCat("shape ", ExtentsToString(extents),
                                                     " has more than ", kMaxElements, " elements"));
    }
    if (extent > 1) product *= extent;
  }
  return absl::OkStatus();
}

}  // namespace

Shape::Shape(std::initializer_list<int64_t> extents) : extents_(extents) {
  absl::Status status = CheckExtents(extents_);
  PSD_CHECK(status.ok(), status.message());
}

absl::StatusOr<Shape> Shape::Checked(absl::Span<const int64_t> extents) {
  PSD_RETURN_IF_ERROR(CheckExtents(extents));
  Shape shape;
  shape.extents_.assign(extents.begin(), extents.end());
  return shape;
}

std::string Shape::ToString() const {
  return ExtentsToString(extents_);
}

Strides ContiguousStrides(const Shape& shape) {
  Strides strides(shape.rank());
  int64_t step = 1;
  for (int axis = shape.rank() - 1; axis >= 0; --axis) {
    strides[axis] = step;
    step *= std::max<int64_t>(shape[axis], 1);
  }
  return strides;
}

absl::StatusOr<Shape> BroadcastShapes(const Shape& a, const Shape& b) {
  if (a == b) return a;
  const int rank = std::max(a.rank(), b.rank());
  Strides extents(rank);
  for (int from_last = 1; from_last <= rank; ++from_last) {
    const int64_t of_a = from_last <= a.rank() ? a[a.rank() - from_last] : 1;
    const int64_t of_b = from_last <= b.rank() ? b[b.rank() - from_last] : 1;
    if (of_a != of_b && of_a != 1 && of_b != 1) {
      return WithRemedy(
          absl::InvalidArgumentError(absl::StrCat(
              "shapes ", a.ToString(), " and ", b.ToString(), " do not broadcast: extents ", of_a,
              " and ", of_b, " at axis ", -from_last, " must be equal, or one of them 1")),
          "reshape one argument");
    }
    extents[rank - from_last] = of_a == 1 ? of_b : of_a;
  }
  return Shape::Checked(extents);
}

}  // namespace psd
