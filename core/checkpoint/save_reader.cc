#include "core/checkpoint/save_reader.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/checkpoint/save_folder.h"
#include "core/checkpoint/xxh128.h"

namespace psd::checkpoint {
namespace {

constexpr size_t kVerifyBytes = size_t{4} << 20;

}  // namespace

absl::StatusOr<SafetensorsHeader> ReadSafetensorsHeader(const ReadableFile& file,
                                                        const std::string& path) {
  std::string prefix(std::min<uint64_t>(kSafetensorsPrefixBytes, file.size()), '\0');
  PSD_RETURN_IF_ERROR(file.Read(0, prefix.size(), reinterpret_cast<std::byte*>(prefix.data())));
  auto length = SafetensorsHeaderLength(prefix, file.size());
  if (!length.ok()) return Annotate(length.status(), path);
  std::string text(*length, '\0');
  PSD_RETURN_IF_ERROR(
      file.Read(kSafetensorsPrefixBytes, text.size(), reinterpret_cast<std::byte*>(text.data())));
  auto header = DecodeSafetensorsHeader(text, file.size());
  if (!header.ok()) return Annotate(header.status(), path);
  return header;
}

absl::StatusOr<std::unique_ptr<SaveReader>> SaveReader::Open(std::shared_ptr<FileSystem> files,
                                                             const std::string& folder) {
  PSD_ASSIGN_OR_RETURN(CheckpointIndex index, ReadIndex(*files, folder));
  std::unique_ptr<SaveReader> reader(new SaveReader(folder, std::move(index)));
  PSD_RETURN_IF_ERROR(reader->OpenAll(*files));
  return reader;
}

SaveReader::SaveReader(std::string folder, CheckpointIndex index)
    : folder_(std::move(folder)), index_(std::move(index)) {}

absl::StatusOr<SaveReader::OpenFile> SaveReader::OpenSaved(FileSystem& files,
                                                           const std::string& folder,
                                                           const SavedFile& saved) {
  OpenFile open;
  open.saved = saved;
  open.path = absl::StrCat(folder, "/", saved.name);
  auto file = files.Open(open.path);
  if (absl::IsNotFound(file.status()))
    return absl::DataLossError(absl::StrCat(open.path, " is missing from the save"));
  if (!file.ok()) return file.status();
  open.file = *std::move(file);
  if (open.file->size() != saved.bytes) {
    return absl::DataLossError(absl::StrCat(open.path, " has ", open.file->size(),
                                            " bytes, and the index says ", saved.bytes,
                                            "; it was cut short or changed"));
  }
  PSD_ASSIGN_OR_RETURN(SafetensorsHeader header, ReadSafetensorsHeader(*open.file, open.path));
  for (SafetensorsEntry& tensor : header.tensors) {
    std::string name = tensor.name;
    open.tensors.emplace(std::move(name), std::move(tensor));
  }
  return open;
}

absl::Status SaveReader::OpenAll(FileSystem& files) {
  for (const SavedFile& saved : index_.files) {
    PSD_ASSIGN_OR_RETURN(OpenFile open, OpenSaved(files, folder_, saved));
    bytes_ += saved.bytes;
    files_.emplace(saved.name, std::move(open));
  }
  for (const SavedValue& value : index_.values) PSD_RETURN_IF_ERROR(CheckValue(value));
  for (const SavedOptimizer& optimizer : index_.optimizers)
    PSD_RETURN_IF_ERROR(CheckStates(optimizer));
  return absl::OkStatus();
}

absl::Status SaveReader::Verify(const std::function<bool(uint64_t bytes)>& progress) const {
  for (const auto& [name, open] : files_) PSD_RETURN_IF_ERROR(VerifyFile(open, progress));
  return absl::OkStatus();
}

absl::StatusOr<Tensor> SaveReader::ReadValue(const SavedValue& value,
                                             std::optional<RowRange> rows) const {
  return Read(value.file, value.name, rows);
}

absl::StatusOr<Tensor> SaveReader::ReadState(const SavedOptimizer&, size_t parameter,
                                             const SavedSlot& slot,
                                             std::optional<RowRange> rows) const {
  return Read(slot.file, StateTensorName(parameter, slot.name), rows);
}

absl::StatusOr<Buffer> SaveReader::ReadValueBytes(const SavedValue& value, uint64_t first,
                                                  uint64_t bytes) const {
  return ReadBytes(value.file, value.name, first, bytes);
}

absl::StatusOr<Buffer> SaveReader::ReadStateBytes(const SavedOptimizer&, size_t parameter,
                                                  const SavedSlot& slot, uint64_t first,
                                                  uint64_t bytes) const {
  return ReadBytes(slot.file, StateTensorName(parameter, slot.name), first, bytes);
}

TensorSpec SaveReader::StateSpec(const SavedOptimizer&, size_t parameter,
                                 const SavedSlot& slot) const {
  const SafetensorsEntry* entry = Find(slot.file, StateTensorName(parameter, slot.name));
  PSD_CHECK(entry != nullptr, "Open has found every state");
  return {slot.name, *entry->type->dtype, entry->shape};
}

const SafetensorsEntry* SaveReader::Find(const std::string& file, const std::string& tensor) const {
  const auto& tensors = files_.at(file).tensors;
  auto found = tensors.find(tensor);
  return found == tensors.end() ? nullptr : &found->second;
}

absl::Status SaveReader::CheckValue(const SavedValue& value) const {
  const SafetensorsEntry* entry = Find(value.file, value.name);
  if (entry != nullptr && entry->type->dtype == value.dtype && entry->shape == value.shape)
    return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(
      files_.at(value.file).path, " should hold '", value.name, "' as ",
      SafetensorsTypeName(value.dtype), value.shape.ToString(), ", and ",
      entry == nullptr ? "does not"
                       : absl::StrCat("has ", entry->type->name, entry->shape.ToString())));
}

absl::Status SaveReader::CheckStates(const SavedOptimizer& optimizer) const {
  for (size_t i = 0; i < optimizer.parameters.size(); ++i) {
    const SavedState& state = optimizer.parameters[i];
    for (const SavedSlot& slot : state.slots) {
      const SafetensorsEntry* entry = Find(slot.file, StateTensorName(i, slot.name));
      if (entry != nullptr && entry->type->dtype.has_value()) continue;
      return absl::DataLossError(absl::StrCat(files_.at(slot.file).path, " should hold ",
                                              StateTensorName(i, slot.name), " of '",
                                              optimizer.name, "', and does not"));
    }
  }
  return absl::OkStatus();
}

absl::Status SaveReader::VerifyFile(const OpenFile& open,
                                    const std::function<bool(uint64_t bytes)>& progress) {
  Xxh128 checksum;
  std::vector<std::byte> piece(std::min<uint64_t>(kVerifyBytes, open.saved.bytes));
  for (uint64_t at = 0; at < open.saved.bytes;) {
    const auto bytes = static_cast<size_t>(std::min<uint64_t>(piece.size(), open.saved.bytes - at));
    PSD_RETURN_IF_ERROR(open.file->Read(at, bytes, piece.data()));
    checksum.Add({reinterpret_cast<const char*>(piece.data()), bytes});
    at += bytes;
    if (progress != nullptr && !progress(bytes))
      return absl::CancelledError("stopped while the checksums were compared");
  }
  const std::string sum = checksum.Digest();
  if (sum == open.saved.xxh128) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(open.path, " is damaged: its XXH128 is ", sum,
                                          ", and the index says ", open.saved.xxh128));
}

absl::StatusOr<Tensor> SaveReader::Read(const std::string& file, const std::string& name,
                                        std::optional<RowRange> rows) const {
  const OpenFile& open = files_.at(file);
  const SafetensorsEntry& entry = open.tensors.at(name);
  Shape shape = entry.shape;
  uint64_t offset = entry.offset;
  if (rows.has_value()) {
    PSD_CHECK(shape.rank() > 0 && rows->first >= 0 && rows->count >= 0 &&
                  rows->count <= shape[0] - rows->first,
              "rows beyond the tensor");
    shape = WithRows(shape, rows->count);
    offset += static_cast<uint64_t>(WithRows(shape, rows->first).NumElements()) * entry.type->bytes;
  }
  PSD_ASSIGN_OR_RETURN(Tensor tensor, Tensor::Empty(shape, *entry.type->dtype));
  PSD_RETURN_IF_ERROR(open.file->Read(offset, tensor.NumBytes(), tensor.mutable_raw_data()));
  return tensor;
}

absl::StatusOr<Buffer> SaveReader::ReadBytes(const std::string& file, const std::string& name,
                                             uint64_t first, uint64_t bytes) const {
  const OpenFile& open = files_.at(file);
  const SafetensorsEntry& entry = open.tensors.at(name);
  PSD_CHECK(first <= entry.bytes && bytes <= entry.bytes - first, "bytes beyond the tensor");
  PSD_ASSIGN_OR_RETURN(Tensor piece, Tensor::Empty(Shape{static_cast<int64_t>(bytes)}, DType::kU8));
  PSD_RETURN_IF_ERROR(open.file->Read(entry.offset + first, bytes, piece.mutable_raw_data()));
  return piece.AsBuffer();
}

}  // namespace psd::checkpoint
