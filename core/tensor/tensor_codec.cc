#include "core/tensor/tensor_codec.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/remedy.h"
#include "core/base/status.h"

namespace psd {
namespace {

absl::Status CheckCounts(const TensorColumns& columns, size_t tensors) {
  const size_t runs = columns.counts.size();
  if (columns.dtypes.size() != runs || columns.ranks.size() != runs) {
    return absl::InvalidArgumentError(
        absl::StrCat(runs, " runs of tensors arrived with ", columns.dtypes.size(), " dtypes and ",
                     columns.ranks.size(), " ranks; each run needs one of each"));
  }
  uint64_t count = 0;
  for (uint32_t of_run : columns.counts) {
    if (of_run == 0) return absl::InvalidArgumentError("a run of no tensors");
    count += of_run;
  }
  if (count != tensors) {
    return absl::InvalidArgumentError(
        absl::StrCat(tensors, " tensors arrived, but their runs add up to ", count));
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

}  // namespace

absl::Status CheckSendable(absl::Span<const Tensor* const> tensors) {
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i]->defined()) continue;
    return WithRemedy(
        absl::InvalidArgumentError(absl::StrCat("tensor ", i, " to send is undefined")),
        "give it elements first");
  }
  return absl::OkStatus();
}

void EncodeRuns(absl::Span<const FlatTensor> tensors, TensorColumns* columns) {
  const auto alike = [](const FlatTensor& a, const FlatTensor& b) {
    return a.dtype == b.dtype && *a.shape == *b.shape;
  };
  for (auto first = tensors.begin(); first != tensors.end();) {
    const auto end = std::find_if(first + 1, tensors.end(),
                                  [&](const FlatTensor& next) { return !alike(*first, next); });
    const Shape& shape = *first->shape;
    columns->counts.push_back(static_cast<uint32_t>(end - first));
    columns->dtypes.push_back(static_cast<uint32_t>(first->dtype));
    columns->ranks.push_back(static_cast<uint32_t>(shape.rank()));
    columns->dims.insert(columns->dims.end(), shape.extents().begin(), shape.extents().end());
    first = end;
  }
}

absl::StatusOr<std::vector<TensorRun>> DecodeRuns(const TensorColumns& columns, size_t tensors) {
  PSD_RETURN_IF_ERROR(CheckCounts(columns, tensors));
  std::vector<TensorRun> runs;
  runs.reserve(columns.counts.size());
  absl::Span<const int64_t> dims = columns.dims;
  size_t first = 0;
  for (size_t i = 0; i < columns.counts.size(); ++i) {
    const size_t rank = columns.ranks[i];
    absl::StatusOr<TensorSpec> spec = DecodeSpec(columns.dtypes[i], dims.subspan(0, rank));
    if (!spec.ok()) return Annotate(spec.status(), absl::StrCat("tensor ", first));
    runs.push_back({*std::move(spec), columns.counts[i]});
    first += columns.counts[i];
    dims.remove_prefix(rank);
  }
  return runs;
}

absl::StatusOr<Tensor> DecodeTensor(const TensorSpec& spec, Buffer bytes) {
  PSD_ASSIGN_OR_RETURN(Tensor tensor, Tensor::FromBuffer(spec.shape, spec.dtype, std::move(bytes)));
  // The tensor's elements are checked, not `bytes`, which may change (see FromBuffer).
  if (spec.dtype == DType::kBool) {
    PSD_RETURN_IF_ERROR(tensor.CheckOnHost("decoding bools"));
    PSD_RETURN_IF_ERROR(CheckBools(tensor.AsBuffer()));
  }
  return tensor;
}

absl::Status DecodeTensors(const TensorSpec& spec, const Buffer& bytes, size_t step, size_t count,
                           std::vector<Tensor>* tensors) {
  if (spec.dtype != DType::kBool) {
    return Tensor::CutRun(spec.shape, spec.dtype, bytes, step, count, tensors);
  }
  for (size_t i = 0; i < count; ++i) {
    PSD_ASSIGN_OR_RETURN(Tensor tensor, DecodeTensor(spec, bytes.Slice(i * step, spec.bytes)));
    tensors->push_back(std::move(tensor));
  }
  return absl::OkStatus();
}

}  // namespace psd
