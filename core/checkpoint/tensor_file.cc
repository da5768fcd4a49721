#include "core/checkpoint/tensor_file.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/remedy.h"
#include "core/base/status.h"

namespace psd::checkpoint {
namespace {

absl::StatusOr<std::string> Header(const FileSpec& spec) {
  return EncodeSafetensorsHeader(spec.tensors, {{"format", "pt"}});
}

bool IsPartOf(const Tensor& tensor, const TensorSpec& spec) {
  if (tensor.dtype() != spec.dtype) return false;
  if (tensor.shape() == spec.shape) return true;
  // WithRows cannot be used: the spec may come from a peer, and with this number of rows it might
  // not be a valid shape.
  return spec.shape.rank() > 0 && tensor.shape().rank() == spec.shape.rank() &&
         tensor.shape().extents().subspan(1) == spec.shape.extents().subspan(1);
}

absl::Status Changed(absl::string_view name, absl::string_view what) {
  return WithRemedy(absl::AbortedError(absl::StrCat("'", name, "' ", what, " during the save")),
                    "save again");
}

}  // namespace

absl::StatusOr<uint64_t> FileBytes(const FileSpec& spec) {
  PSD_ASSIGN_OR_RETURN(std::string header, Header(spec));
  uint64_t bytes = header.size();
  for (const TensorSpec& tensor : spec.tensors) bytes += tensor.bytes();
  return bytes;
}

absl::StatusOr<std::unique_ptr<TensorFile>> TensorFile::Start(std::unique_ptr<WritableFile> file,
                                                              FileSpec spec,
                                                              std::shared_ptr<Allocator> memory) {
  PSD_ASSIGN_OR_RETURN(std::string header, Header(spec));
  PSD_ASSIGN_OR_RETURN(auto checked,
                       CheckedFile::Start(std::move(file), spec.name, std::move(memory)));
  PSD_RETURN_IF_ERROR(checked->Append(header));
  return std::unique_ptr<TensorFile>(new TensorFile(std::move(spec), std::move(checked)));
}

const TensorSpec* TensorFile::Next() {
  while (next_ < spec_.tensors.size() && filled_ == spec_.tensors[next_].bytes()) {
    ++next_;
    filled_ = 0;
  }
  return next_ < spec_.tensors.size() ? &spec_.tensors[next_] : nullptr;
}

absl::Status TensorFile::Check(const Tensor& tensor) {
  if (tensor.NumElements() == 0) return absl::OkStatus();
  const TensorSpec* next = Next();
  if (next == nullptr) return Changed(spec_.name, "was to have fewer tensors: more have come");
  if (IsPartOf(tensor, *next)) return absl::OkStatus();
  return Changed(next->name, absl::StrCat("was ", DTypeName(next->dtype), next->shape.ToString(),
                                          " and has become ", tensor.ToString()));
}

absl::Status TensorFile::Append(const Tensor& tensor) {
  PSD_RETURN_IF_ERROR(Check(tensor));
  PSD_ASSIGN_OR_RETURN(Tensor dense, tensor.Contiguous());
  return AppendBytes(dense.AsBuffer().view());
}

absl::Status TensorFile::AppendBytes(absl::string_view bytes) {
  if (bytes.empty()) return absl::OkStatus();
  const TensorSpec* next = Next();
  if (next == nullptr || bytes.size() > next->bytes() - filled_)
    return Changed(next == nullptr ? spec_.name : next->name, "has become larger");
  filled_ += bytes.size();
  return file_->Append(bytes);
}

absl::StatusOr<SavedFile> TensorFile::Finish() {
  const TensorSpec* missing = Next();
  if (missing != nullptr) return Changed(missing->name, "did not come as a whole");
  return file_->Finish();
}

}  // namespace psd::checkpoint
