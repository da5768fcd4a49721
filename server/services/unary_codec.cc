#include "server/services/unary_codec.h"

#include <cstring>
#include <optional>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "core/base/clip_text.h"
#include "core/base/remedy.h"
#include "core/base/status.h"

namespace psd::server {
namespace {

// The most bytes of an error text. gRPC sends it as metadata, where an escaped byte takes three,
// and clients refuse more than 8 KiB of metadata.
constexpr size_t kMaxErrorText = 1500;

// Adds metadata, which must be printable ASCII, while `value` may contain any bytes of a client.
void AddMetadata(grpc::ServerContextBase& context, const char* key, const std::string& value) {
  constexpr size_t kMaxBytes = 1024;
  if (!value.empty())
    context.AddTrailingMetadata(key, absl::CHexEscape(value).substr(0, kMaxBytes));
}

}  // namespace

absl::StatusOr<DType> DecodeDataType(v1::DataType type) {
  // The numbers are those of DType.
  const auto number = static_cast<uint64_t>(type);
  if (IsValidDType(number)) return static_cast<DType>(number);
  return WithRemedy(
      absl::InvalidArgumentError(absl::StrCat("dtype ", static_cast<int>(type), " is none")),
      "see DataType in service.proto");
}

v1::DataType EncodeDataType(DType dtype) {
  return static_cast<v1::DataType>(dtype);
}

absl::StatusOr<Tensor> DecodeTensor(const v1::TensorData& data) {
  PSD_ASSIGN_OR_RETURN(DType dtype, DecodeDataType(data.dtype()));
  PSD_ASSIGN_OR_RETURN(
      Shape shape, Shape::Checked(absl::MakeConstSpan(data.shape().data(), data.shape().size())));
  const size_t expected = static_cast<size_t>(shape.NumElements()) * ItemSize(dtype);
  if (data.elements().size() != expected) {
    return absl::InvalidArgumentError(absl::StrCat(DTypeName(dtype), shape.ToString(), " has ",
                                                   expected, " bytes; elements has ",
                                                   data.elements().size()));
  }
  PSD_ASSIGN_OR_RETURN(Tensor tensor, Tensor::Empty(shape, dtype));
  if (expected != 0) std::memcpy(tensor.mutable_raw_data(), data.elements().data(), expected);
  return tensor;
}

absl::Status EncodeTensor(const Tensor& tensor, v1::TensorData& data) {
  PSD_ASSIGN_OR_RETURN(const Tensor here, tensor.ToHost());
  PSD_ASSIGN_OR_RETURN(const Tensor contiguous, here.Contiguous());
  data.set_dtype(EncodeDataType(contiguous.dtype()));
  for (int64_t extent : contiguous.shape().extents()) data.add_shape(extent);
  data.set_elements(contiguous.raw_data(), contiguous.NumBytes());
  return absl::OkStatus();
}

absl::Status ClipError(const absl::Status& status) {
  if (status.ok()) return status;
  const absl::Status clipped(status.code(), ClipText(status.message(), kMaxErrorText));
  std::optional<ErrorDetail> detail = GetDetail(status);
  if (!detail.has_value()) return clipped;
  for (std::string* text : {&detail->worker, &detail->object, &detail->remedy})
    *text = ClipText(*text, kMaxErrorText);
  return WithDetail(clipped, *detail);
}

grpc::Status ToGrpcStatus(const absl::Status& status, grpc::ServerContextBase& context) {
  if (status.ok()) return grpc::Status::OK;
  if (auto detail = GetDetail(status)) {
    AddMetadata(context, "psd-worker", detail->worker);
    AddMetadata(context, "psd-object", detail->object);
    AddMetadata(context, "psd-remedy", detail->remedy);
  }
  // Both enums have the same numbers.
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()),
                      ClipText(status.message(), kMaxErrorText));
}

}  // namespace psd::server
