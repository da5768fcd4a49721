#include "core/checkpoint/safetensors_codec.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/checkpoint/json_text.h"

namespace psd::checkpoint {
namespace {

absl::Status Bad(absl::string_view tensor, absl::string_view problem) {
  return absl::InvalidArgumentError(absl::StrCat("tensor '", tensor, "' ", problem));
}

absl::StatusOr<const SafetensorsType*> FindType(absl::string_view tensor, absl::string_view name) {
  for (const SafetensorsType& type : kSafetensorsTypes)
    if (type.name == name) return &type;
  return Bad(tensor, absl::StrCat("has the unknown dtype '", name, "'"));
}

absl::StatusOr<Shape> DecodeShape(absl::string_view tensor, const Json& extents) {
  if (extents.size() > Shape::kMaxRank) {
    return Bad(tensor, absl::StrCat("has ", extents.size(), " axes; at most ", Shape::kMaxRank,
                                    " are supported"));
  }
  std::vector<int64_t> numbers;
  for (const Json& extent : extents) {
    if (!extent.is_number_unsigned() || extent.get<uint64_t>() > uint64_t{INT64_MAX})
      return Bad(tensor, absl::StrCat("has the extent ", extent.dump(-1, ' ', true)));
    numbers.push_back(extent.get<int64_t>());
  }
  auto shape = Shape::Checked(numbers);
  if (!shape.ok()) return Bad(tensor, absl::StrCat("has a bad shape: ", shape.status().message()));
  return shape;
}

// Decodes one member of the header. `data_begin` is the offset in the file at which the elements
// start.
absl::StatusOr<SafetensorsEntry> DecodeEntry(const std::string& name, const Json& json,
                                             uint64_t data_begin, uint64_t data_bytes) {
  const std::string what = absl::StrCat("tensor '", name, "'");
  SafetensorsEntry entry;
  entry.name = name;
  PSD_ASSIGN_OR_RETURN(std::string dtype, StringMember(json, "dtype", what));
  PSD_ASSIGN_OR_RETURN(entry.type, FindType(name, dtype));
  PSD_ASSIGN_OR_RETURN(const Json* extents, ArrayMember(json, "shape", what));
  PSD_ASSIGN_OR_RETURN(entry.shape, DecodeShape(name, *extents));
  PSD_ASSIGN_OR_RETURN(const Json* offsets, ArrayMember(json, "data_offsets", what));
  if (offsets->size() != 2 || !(*offsets)[0].is_number_unsigned() ||
      !(*offsets)[1].is_number_unsigned()) {
    return Bad(name, "has data_offsets that are not two whole numbers");
  }
  const auto begin = (*offsets)[0].get<uint64_t>(), end = (*offsets)[1].get<uint64_t>();
  if (begin > end || end > data_bytes) {
    return Bad(name, absl::StrCat("lies at [", begin, ", ", end, ") of ", data_bytes,
                                  " bytes of elements; the file is cut short or damaged"));
  }
  entry.offset = data_begin + begin;
  entry.bytes = end - begin;
  const uint64_t needed = static_cast<uint64_t>(entry.shape.NumElements()) * entry.type->bytes;
  if (needed != entry.bytes) {
    return Bad(name, absl::StrCat("has ", entry.bytes, " bytes; ", dtype, entry.shape.ToString(),
                                  " needs ", needed));
  }
  return entry;
}

// Sorts the tensors by offset, and checks that they fill the rest of the file.
absl::Status CheckPlaces(std::vector<SafetensorsEntry>& tensors, uint64_t data_begin,
                         uint64_t file_bytes) {
  std::sort(tensors.begin(), tensors.end(),
            [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
              return std::tie(a.offset, a.bytes, a.name) < std::tie(b.offset, b.bytes, b.name);
            });
  uint64_t at = data_begin;
  for (const SafetensorsEntry& tensor : tensors) {
    if (tensor.offset < at) return Bad(tensor.name, "overlaps the one before it");
    if (tensor.offset > at) {
      return Bad(tensor.name,
                 absl::StrCat("leaves a gap of ", tensor.offset - at, " bytes before it"));
    }
    at += tensor.bytes;
  }
  if (at == file_bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(file_bytes - at, " bytes behind the last tensor belong to none"));
}

absl::StatusOr<std::map<std::string, std::string>> DecodeMetadata(const Json& json) {
  if (!json.is_object())
    return absl::InvalidArgumentError(absl::StrCat(kSafetensorsMetadataKey, " is no object"));
  std::map<std::string, std::string> metadata;
  for (const auto& [key, value] : json.items()) {
    if (!value.is_string()) {
      return absl::InvalidArgumentError(
          absl::StrCat(kSafetensorsMetadataKey, ": '", key, "' is not a string"));
    }
    metadata[key] = value.get_ref<const std::string&>();
  }
  return metadata;
}

Json EncodeEntry(const TensorSpec& tensor, uint64_t begin) {
  Json entry;
  entry["dtype"] = std::string(SafetensorsTypeName(tensor.dtype));
  entry["shape"] = Json::array();
  for (int64_t extent : tensor.shape.extents()) entry["shape"].push_back(extent);
  entry["data_offsets"] = {begin, begin + tensor.bytes()};
  return entry;
}

}  // namespace

Shape WithRows(const Shape& shape, int64_t rows) {
  std::vector<int64_t> extents(shape.extents().begin(), shape.extents().end());
  extents.at(0) = rows;
  auto changed = Shape::Checked(extents);
  PSD_CHECK(changed.ok(), "a part of a shape is one");
  return *changed;
}

absl::string_view SafetensorsTypeName(DType dtype) {
  for (const SafetensorsType& type : kSafetensorsTypes)
    if (type.dtype == dtype) return type.name;
  PSD_CHECK(false, "every dtype has a name in safetensors files");
}

absl::StatusOr<std::string> EncodeSafetensorsHeader(
    absl::Span<const TensorSpec> tensors, const std::map<std::string, std::string>& metadata) {
  // The order of the keys does not matter: the offsets give the order of the tensors.
  Json json = Json::object();
  if (!metadata.empty()) json[std::string(kSafetensorsMetadataKey)] = metadata;
  uint64_t at = 0;
  for (const TensorSpec& tensor : tensors) {
    if (tensor.name == kSafetensorsMetadataKey || json.contains(tensor.name))
      return Bad(tensor.name, "cannot be written: the name is taken");
    json[tensor.name] = EncodeEntry(tensor, at);
    at += tensor.bytes();
  }
  std::string text = json.dump(-1, ' ', false, Json::error_handler_t::replace);
  // Text that is not UTF-8 was replaced by dump, so it reads back differently.
  auto again = ParseJson(text, "the header");
  if (!again.ok() || *again != json)
    return absl::InvalidArgumentError("a name of a tensor or a text of the metadata is not UTF-8");
  text.resize(
      (text.size() + kSafetensorsAlignment - 1) / kSafetensorsAlignment * kSafetensorsAlignment,
      ' ');
  if (text.size() > kMaxSafetensorsHeaderBytes) {
    return absl::InvalidArgumentError(absl::StrCat("a header of ", text.size(), " bytes for ",
                                                   tensors.size(), " tensors; files may have ",
                                                   kMaxSafetensorsHeaderBytes));
  }
  std::string bytes(kSafetensorsPrefixBytes, '\0');
  for (size_t i = 0; i < kSafetensorsPrefixBytes; ++i)
    bytes[i] = static_cast<char>(text.size() >> (8 * i));
  return bytes + text;
}

absl::StatusOr<uint64_t> SafetensorsHeaderLength(absl::string_view prefix, uint64_t file_bytes) {
  if (prefix.size() < kSafetensorsPrefixBytes || file_bytes < kSafetensorsPrefixBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a file of ", std::min<uint64_t>(prefix.size(), file_bytes),
                     " bytes is no safetensors file: it is too short for its prefix"));
  }
  uint64_t length = 0;
  for (size_t i = kSafetensorsPrefixBytes; i-- > 0;)
    length = length << 8 | static_cast<uint8_t>(prefix[i]);
  if (length > file_bytes - kSafetensorsPrefixBytes || length > kMaxSafetensorsHeaderBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "its header claims ", length, " bytes, in a file of ", file_bytes, " and with at most ",
        kMaxSafetensorsHeaderBytes, " allowed: cut short, damaged, or no safetensors file"));
  }
  return length;
}

absl::StatusOr<SafetensorsHeader> DecodeSafetensorsHeader(absl::string_view text,
                                                          uint64_t file_bytes) {
  const uint64_t data_begin = kSafetensorsPrefixBytes + text.size();
  if (data_begin > file_bytes)
    return absl::InvalidArgumentError("the header is longer than the file");
  PSD_ASSIGN_OR_RETURN(Json json, ParseJson(text, "the header"));
  if (!json.is_object()) return absl::InvalidArgumentError("the header is no JSON object");
  SafetensorsHeader header;
  for (const auto& [name, member] : json.items()) {
    if (name == kSafetensorsMetadataKey) {
      PSD_ASSIGN_OR_RETURN(header.metadata, DecodeMetadata(member));
      continue;
    }
    PSD_ASSIGN_OR_RETURN(SafetensorsEntry entry,
                         DecodeEntry(name, member, data_begin, file_bytes - data_begin));
    header.tensors.push_back(std::move(entry));
  }
  PSD_RETURN_IF_ERROR(CheckPlaces(header.tensors, data_begin, file_bytes));
  return header;
}

}  // namespace psd::checkpoint
