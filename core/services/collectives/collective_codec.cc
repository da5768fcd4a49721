#include "core/services/collectives/collective_codec.h"

#include <cstdint>
#include <limits>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "proto/psd/v1/collective.pb.h"

namespace psd::services {
namespace {

template <typename Message>
void WriteForm(const TensorForm& form, Message& out) {
  out.set_dtype(static_cast<uint32_t>(form.dtype));
  for (const int64_t extent : form.shape.extents()) out.add_extents(extent);
}

template <typename Message>
absl::StatusOr<TensorForm> ReadForm(const Message& in) {
  if (!IsValidDType(in.dtype()))
    return absl::InvalidArgumentError(absl::StrCat("a tensor of a group with dtype ", in.dtype()));
  TensorForm form;
  form.dtype = static_cast<DType>(in.dtype());
  PSD_ASSIGN_OR_RETURN(form.shape, Shape::Checked(in.extents()));
  return form;
}

}  // namespace

void EncodeForm(const TensorForm& form, v1::CollectiveTaken& out) {
  WriteForm(form, out);
}

absl::StatusOr<TensorForm> DecodeForm(const v1::CollectiveTaken& in) {
  return ReadForm(in);
}

void EncodeCall(const CollectiveCall& call, v1::CollectiveCall& out) {
  out.set_operation(static_cast<uint32_t>(call.operation));
  if (call.reduction.has_value()) out.set_reduction(static_cast<uint32_t>(*call.reduction));
  if (call.form.has_value()) WriteForm(*call.form, out);
  out.set_root(static_cast<uint32_t>(call.root));
  out.set_label(call.label);
  out.set_shares_memory(call.shares_memory);
}

absl::StatusOr<CollectiveCall> DecodeCall(const v1::CollectiveCall& in) {
  constexpr uint32_t kMost = std::numeric_limits<uint8_t>::max();
  if (in.operation() > kMost || in.reduction() > kMost ||
      in.root() > static_cast<uint32_t>(std::numeric_limits<int32_t>::max())) {
    return absl::InvalidArgumentError(absl::StrCat("a call of a group with operation ",
                                                   in.operation(), ", reduction ", in.reduction(),
                                                   " and root ", in.root()));
  }
  CollectiveCall call;
  call.operation = static_cast<Operation>(in.operation());
  if (in.reduction() != 0) call.reduction = static_cast<Reduction>(in.reduction());
  if (in.dtype() != 0) {
    PSD_ASSIGN_OR_RETURN(call.form, ReadForm(in));
  }
  call.root = static_cast<int>(in.root());
  call.label = in.label();
  call.shares_memory = in.shares_memory();
  return call;
}

void EncodeFailure(const absl::Status& failure, v1::CollectiveEnd& out) {
  out.set_code(static_cast<uint32_t>(failure.code()));
  out.set_message(std::string(failure.message()));
  if (const auto detail = GetDetail(failure)) {
    out.set_worker(detail->worker);
    out.set_object(detail->object);
    out.set_remedy(detail->remedy);
  }
}

absl::Status DecodeFailure(const v1::CollectiveEnd& in) {
  const bool valid = in.code() >= 1 && in.code() <= 16;
  ErrorDetail detail;
  detail.worker = in.worker();
  detail.object = in.object();
  detail.remedy = in.remedy();
  return WithDetail(
      absl::Status(valid ? static_cast<absl::StatusCode>(in.code()) : absl::StatusCode::kUnknown,
                   in.message()),
      detail);
}

}  // namespace psd::services
