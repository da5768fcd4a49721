#include "core/tensor/tensor_codec.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace psd {
namespace {

absl::Status CheckSendable(const Tensor& tensor, size_t number) {
  if (!tensor.defined()) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor ", number, " to send is undefined; give it elements first"));
  }
  if (!tensor.device().IsCpu()) {
    return absl::InvalidArgumentError(absl::StrCat("tensor ", number, " to send is on ",
                                                   tensor.device().ToString(),
                                                   "; copy it to the cpu first"));
  }
  return absl::OkStatus();
}

absl::Status CheckCounts(const TensorColumns& columns) {
  const size_t count = columns.dtypes.size();
  if (columns.ranks.size() != count) {
    return absl::InvalidArgumentError(absl::StrCat("tensors arrived with ", count, " dtypes and ",
                                                   columns.ranks.size(),
                                                   " ranks; each tensor needs one of each"));
  }
  uint64_t dims = 0;
  for (uint32_t rank : columns.ranks) dims += rank;
  if (dims == columns.dims.size()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("tensors arrived with ", columns.dims.size(),
                                                 " extents, but their ranks add up to ", dims));
}

absl::Status CheckBools(const Buffer& bytes) {
  const auto bad = std::find_if(bytes.data(), bytes.data() + bytes.size(),
                                [](std::byte b) { return b > std::byte{1}; });
  if (bad == bytes.data() + bytes.size()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("byte ", bad - bytes.data(), " of the bools is ",
                                                 static_cast<int>(*bad),
                                                 "; bools are sent as 0 or 1"));
}

absl::StatusOr<TensorSpec> DecodeSpec(uint32_t dtype_number, absl::Span<const int64_t> extents) {
  if (!IsValidDType(dtype_number)) {
    return absl::InvalidArgumentError(
        absl::StrCat("dtype number ", dtype_number, " is unknown; known are 1 to 8"));
  }
  TensorSpec spec;
  spec.dtype = static_cast<DType>(dtype_number);
  PSD_ASSIGN_OR_RETURN(spec.shape, Shape::Checked(extents));
  spec.bytes = static_cast<size_t>(spec.shape.NumElements()) * ItemSize(spec.dtype);
  return spec;
}

absl::StatusOr<Tensor> DecodeTensor(const TensorSpec& spec, Buffer bytes) {
  if (spec.dtype == DType::kBool) PSD_RETURN_IF_ERROR(CheckBools(bytes));
  return Tensor::FromBuffer(spec.shape, spec.dtype, std::move(bytes));
}

}  // namespace

absl::Status EncodeTensors(absl::Span<const Tensor> tensors, TensorColumns* columns,
                           std::vector<Buffer>* buffers) {
  std::vector<Buffer> encoded;
  encoded.reserve(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    PSD_RETURN_IF_ERROR(CheckSendable(tensors[i], i));
    PSD_ASSIGN_OR_RETURN(Tensor dense, tensors[i].Contiguous());
    encoded.push_back(dense.AsBuffer());
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Shape& shape = tensors[i].shape();
    columns->dtypes.push_back(static_cast<uint32_t>(tensors[i].dtype()));
    columns->ranks.push_back(static_cast<uint32_t>(shape.rank()));
    columns->dims.insert(columns->dims.end(), shape.extents().begin(), shape.extents().end());
    buffers->push_back(std::move(encoded[i]));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<TensorSpec>> DecodeSpecs(const TensorColumns& columns) {
  PSD_RETURN_IF_ERROR(CheckCounts(columns));
  std::vector<TensorSpec> specs;
  specs.reserve(columns.dtypes.size());
  absl::Span<const int64_t> dims = columns.dims;
  for (size_t i = 0; i < columns.dtypes.size(); ++i) {
    const size_t rank = columns.ranks[i];
    absl::StatusOr<TensorSpec> spec = DecodeSpec(columns.dtypes[i], dims.subspan(0, rank));
    if (!spec.ok()) return Annotate(spec.status(), absl::StrCat("tensor ", i));
    specs.push_back(*std::move(spec));
    dims.remove_prefix(rank);
  }
  return specs;
}

absl::StatusOr<std::vector<Tensor>> DecodeTensors(std::vector<TensorSpec> specs,
                                                  std::vector<Buffer> buffers) {
  if (buffers.size() != specs.size()) {
    return absl::InvalidArgumentError(absl::StrCat(specs.size(), " tensors arrived with ",
                                                   buffers.size(), " payloads; each needs one"));
  }
  std::vector<Tensor> tensors;
  tensors.reserve(buffers.size());
  for (size_t i = 0; i < buffers.size(); ++i) {
    absl::StatusOr<Tensor> tensor = DecodeTensor(specs[i], std::move(buffers[i]));
    if (!tensor.ok()) return Annotate(tensor.status(), absl::StrCat("tensor ", i));
    tensors.push_back(*std::move(tensor));
  }
  return tensors;
}

}  // namespace psd
