#include "core/checkpoint/index_codec.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/checkpoint/index_seal.h"
#include "core/checkpoint/json_text.h"
#include "core/checkpoint/safetensors_codec.h"
#include "core/checkpoint/xxh128.h"

namespace psd::checkpoint {
namespace {

constexpr absl::string_view kFormat = "psd checkpoint";
constexpr size_t kMaxFileName = 255;
constexpr size_t kMaxName = 4096;

// A pair of owner and name.
using Key = std::pair<std::string, std::string>;

absl::Status Bad(absl::string_view problem) {
  return absl::InvalidArgumentError(absl::StrCat("the index ", problem));
}

constexpr std::pair<ValueKind, absl::string_view> kKinds[] = {
    {ValueKind::kParameter, "parameter"},
    {ValueKind::kTensor, "tensor"},
    {ValueKind::kRows, "rows"},
};

absl::string_view KindName(ValueKind kind) {
  for (const auto& [known, name] : kKinds)
    if (known == kind) return name;
  PSD_CHECK(false, "every kind has a name");
}

absl::StatusOr<ValueKind> KindOf(const std::string& value, absl::string_view name) {
  for (const auto& [kind, known] : kKinds)
    if (known == name) return kind;
  return Bad(absl::StrCat("gives '", value, "' the unknown kind '", name, "'"));
}

// ---- checks

// Checks that the name of a file is plain, so that it cannot lead out of the folder, be hidden, or
// look like an option of a command.
absl::Status CheckFileName(const std::string& name) {
  const bool plain =
      !name.empty() && name.size() <= kMaxFileName && (absl::ascii_isalnum(name[0]) != 0) &&
      std::all_of(name.begin(), name.end(), [](unsigned char c) {
        return absl::ascii_isalnum(c) || c == '.' || c == '_' || c == '-' || c == ':';
      });
  if (plain && name != kIndexFileName) return absl::OkStatus();
  return Bad(absl::StrCat("names the file '", name.substr(0, kMaxFileName),
                          "'; files are named by letters, digits and . _ - : alone"));
}

absl::Status CheckName(absl::string_view what, const std::string& name) {
  const bool plain =
      !name.empty() && name.size() <= kMaxName &&
      std::all_of(name.begin(), name.end(), [](unsigned char c) { return absl::ascii_isgraph(c); });
  if (plain) return absl::OkStatus();
  return Bad(absl::StrCat("has ", what, " with an empty or unprintable name"));
}

absl::Status CheckDigest(const SavedFile& file) {
  if (IsXxh128(file.xxh128)) return absl::OkStatus();
  return Bad(absl::StrCat("gives '", file.name, "' an xxh128 that is not ", kXxh128Digits,
                          " hexadecimal digits"));
}

absl::Status CheckFiles(const CheckpointIndex& index, std::set<std::string>* files) {
  for (const SavedFile& file : index.files) {
    PSD_RETURN_IF_ERROR(CheckFileName(file.name));
    PSD_RETURN_IF_ERROR(CheckDigest(file));
    if (!files->insert(file.name).second)
      return Bad(absl::StrCat("lists the file '", file.name, "' twice"));
  }
  return absl::OkStatus();
}

absl::Status CheckValues(const CheckpointIndex& index, const std::set<std::string>& files,
                         std::set<Key>* parameters) {
  std::set<Key> values;
  for (const SavedValue& value : index.values) {
    PSD_RETURN_IF_ERROR(CheckName("a value", value.name));
    PSD_RETURN_IF_ERROR(CheckName("an owner", value.owner));
    const Key key(value.owner, value.name);
    if (!values.insert(key).second)
      return Bad(absl::StrCat("has '", value.name, "' of ", value.owner, " twice"));
    if (files.count(value.file) == 0)
      return Bad(absl::StrCat("puts '", value.name, "' into a file that it does not list"));
    if (value.kind != ValueKind::kTensor) parameters->insert(key);
  }
  return absl::OkStatus();
}

absl::Status CheckParts(const SavedOptimizer& optimizer, const std::string& label) {
  std::set<std::string> parts, owners;
  for (const SavedPart& part : optimizer.parts) {
    if (!parts.insert(part.owner).second)
      return Bad(absl::StrCat("has two parts of ", label, " on ", part.owner));
  }
  for (const SavedState& state : optimizer.parameters) owners.insert(state.owner);
  if (parts == owners) return absl::OkStatus();
  return Bad(absl::StrCat("has parts of ", label, " on other owners than its parameters are"));
}

absl::Status CheckOptimizer(const SavedOptimizer& optimizer, const std::set<std::string>& files,
                            const std::set<Key>& parameters) {
  PSD_RETURN_IF_ERROR(CheckName("an optimizer", optimizer.name));
  const std::string label = absl::StrCat("optimizer '", optimizer.name, "'");
  if (optimizer.groups.empty()) return Bad(absl::StrCat("gives ", label, " no group of options"));
  std::set<Key> seen;
  for (const SavedState& state : optimizer.parameters) {
    const Key key(state.owner, state.parameter);
    if (parameters.count(key) == 0) {
      return Bad(absl::StrCat("lets ", label, " step '", state.parameter, "' of ", state.owner,
                              ", which is no parameter of this save"));
    }
    if (!seen.insert(key).second)
      return Bad(absl::StrCat("lets ", label, " step '", state.parameter, "' twice"));
    if (state.group >= optimizer.groups.size())
      return Bad(
          absl::StrCat("puts '", state.parameter, "' into a group that ", label, " has not"));
    const std::string elsewhere =
        absl::StrCat("puts state of ", label, " into a file that it does not list");
    if (files.count(state.file) == 0) return Bad(elsewhere);
    std::set<std::string> slots;
    for (const SavedSlot& slot : state.slots) {
      PSD_RETURN_IF_ERROR(CheckName(label, slot.name));
      if (files.count(slot.file) == 0) return Bad(elsewhere);
      if (slot.name == kStepSlot || !slots.insert(slot.name).second)
        return Bad(absl::StrCat("has the state '", slot.name, "' of ", label, " twice"));
    }
  }
  return CheckParts(optimizer, label);
}

absl::Status CheckIndex(const CheckpointIndex& index) {
  std::set<std::string> files;
  std::set<Key> parameters, places;
  PSD_RETURN_IF_ERROR(CheckFiles(index, &files));
  PSD_RETURN_IF_ERROR(CheckValues(index, files, &parameters));
  for (const SavedOptimizer& optimizer : index.optimizers) {
    PSD_RETURN_IF_ERROR(CheckOptimizer(optimizer, files, parameters));
    std::set<std::string> owners;
    for (const SavedState& state : optimizer.parameters) owners.insert(state.owner);
    for (const std::string& owner : owners) {
      if (!places.insert({owner, optimizer.name}).second)
        return Bad(absl::StrCat("has optimizer '", optimizer.name, "' of ", owner, " twice"));
    }
  }
  return absl::OkStatus();
}

// ---- from text

absl::StatusOr<std::vector<std::string>> Strings(const Json& list, absl::string_view what) {
  std::vector<std::string> strings;
  for (const Json& item : list) {
    if (!item.is_string()) return Bad(absl::StrCat("has ", what, " that is not a string"));
    strings.push_back(item.get_ref<const std::string&>());
  }
  return strings;
}

absl::StatusOr<DType> DTypeMember(const Json& json, absl::string_view what) {
  PSD_ASSIGN_OR_RETURN(std::string name, StringMember(json, "dtype", what));
  for (const SafetensorsType& type : kSafetensorsTypes)
    if (type.name == name && type.dtype.has_value()) return *type.dtype;
  return Bad(absl::StrCat("gives ", what, " the unknown dtype '", name, "'"));
}

absl::StatusOr<Shape> ShapeMember(const Json& json, absl::string_view what) {
  PSD_ASSIGN_OR_RETURN(const Json* list, ArrayMember(json, "shape", what));
  std::vector<int64_t> extents;
  for (const Json& extent : *list) {
    if (!extent.is_number_unsigned() || extent.get<uint64_t>() > uint64_t{INT64_MAX})
      return Bad(absl::StrCat("gives ", what, " an extent that is no whole number"));
    extents.push_back(extent.get<int64_t>());
  }
  auto shape = Shape::Checked(extents);
  if (!shape.ok())
    return Bad(absl::StrCat("gives ", what, " a bad shape: ", shape.status().message()));
  return shape;
}

absl::StatusOr<SavedFile> FileFrom(const Json& json) {
  SavedFile file;
  PSD_ASSIGN_OR_RETURN(file.name, StringMember(json, "name", "a file of the index"));
  PSD_ASSIGN_OR_RETURN(file.bytes, UnsignedMember(json, "bytes", file.name));
  PSD_ASSIGN_OR_RETURN(file.xxh128, StringMember(json, "xxh128", file.name));
  return file;
}

absl::StatusOr<SavedValue> ValueFrom(const Json& json) {
  SavedValue value;
  PSD_ASSIGN_OR_RETURN(value.name, StringMember(json, "name", "a value of the index"));
  const std::string& what = value.name;
  PSD_ASSIGN_OR_RETURN(value.owner, StringMember(json, "owner", what));
  PSD_ASSIGN_OR_RETURN(std::string kind, StringMember(json, "kind", what));
  PSD_ASSIGN_OR_RETURN(value.kind, KindOf(value.name, kind));
  PSD_ASSIGN_OR_RETURN(value.dtype, DTypeMember(json, what));
  PSD_ASSIGN_OR_RETURN(value.shape, ShapeMember(json, what));
  PSD_ASSIGN_OR_RETURN(value.requires_grad, BoolMember(json, "requires_grad", what));
  PSD_ASSIGN_OR_RETURN(value.version, UnsignedMember(json, "version", what));
  PSD_ASSIGN_OR_RETURN(value.file, StringMember(json, "file", what));
  if (absl::Status fits = CheckKind(value); !fits.ok())
    return Bad(absl::StrCat("says: ", fits.message()));
  return value;
}

absl::StatusOr<SavedState> StateFrom(const Json& json, const std::string& what) {
  SavedState state;
  PSD_ASSIGN_OR_RETURN(state.parameter, StringMember(json, "name", what));
  PSD_ASSIGN_OR_RETURN(state.owner, StringMember(json, "owner", what));
  PSD_ASSIGN_OR_RETURN(state.group, UnsignedMember(json, "group", what));
  PSD_ASSIGN_OR_RETURN(state.steps, UnsignedMember(json, "steps", what));
  if (state.steps > uint64_t{INT64_MAX}) return Bad(absl::StrCat("counts too many steps: ", what));
  PSD_ASSIGN_OR_RETURN(const Json* slots, ArrayMember(json, "slots", what));
  for (const Json& slot : *slots) {
    SavedSlot& saved = state.slots.emplace_back();
    PSD_ASSIGN_OR_RETURN(saved.name, StringMember(slot, "name", what));
    PSD_ASSIGN_OR_RETURN(saved.file, StringMember(slot, "file", what));
  }
  PSD_ASSIGN_OR_RETURN(state.file, StringMember(json, "file", what));
  return state;
}

absl::StatusOr<std::map<std::string, double>> NumbersMember(const Json& json, const char* key,
                                                            const std::string& what) {
  PSD_ASSIGN_OR_RETURN(const Json* members, ObjectMember(json, key, what));
  std::map<std::string, double> options;
  for (const auto& [name, value] : members->items()) {
    if (!value.is_number()) return Bad(absl::StrCat("has no number for '", name, "' of ", what));
    options[name] = value.get<double>();
  }
  return options;
}

absl::StatusOr<SavedPart> PartFrom(const Json& json, const std::string& what) {
  SavedPart part;
  PSD_ASSIGN_OR_RETURN(part.owner, StringMember(json, "owner", what));
  PSD_ASSIGN_OR_RETURN(part.life, StringMember(json, "life", what));
  PSD_ASSIGN_OR_RETURN(part.steps_accepted, UnsignedMember(json, "steps_accepted", what));
  return part;
}

absl::StatusOr<SavedOptimizer> OptimizerFrom(const Json& json) {
  SavedOptimizer optimizer;
  PSD_ASSIGN_OR_RETURN(optimizer.name, StringMember(json, "name", "an optimizer of the index"));
  const std::string& what = optimizer.name;
  PSD_ASSIGN_OR_RETURN(optimizer.type, StringMember(json, "type", what));
  PSD_ASSIGN_OR_RETURN(optimizer.steps_accepted, UnsignedMember(json, "steps_accepted", what));
  PSD_ASSIGN_OR_RETURN(optimizer.loss_scale, NumberMember(json, "loss_scale", what));
  if (json.contains("good_steps")) {  // optional: a save may lack it
    PSD_ASSIGN_OR_RETURN(optimizer.good_steps, UnsignedMember(json, "good_steps", what));
  }
  PSD_ASSIGN_OR_RETURN(optimizer.settings, NumbersMember(json, "settings", what));
  PSD_ASSIGN_OR_RETURN(const Json* groups, ArrayMember(json, "groups", what));
  for (const Json& group : *groups) {
    SavedGroup& saved = optimizer.groups.emplace_back();
    PSD_ASSIGN_OR_RETURN(saved.options, NumbersMember(group, "options", what));
    PSD_ASSIGN_OR_RETURN(saved.created_with, NumbersMember(group, "created_with", what));
  }
  PSD_ASSIGN_OR_RETURN(const Json* parts, ArrayMember(json, "parts", what));
  for (const Json& each : *parts) {
    PSD_ASSIGN_OR_RETURN(SavedPart part, PartFrom(each, what));
    optimizer.parts.push_back(std::move(part));
  }
  PSD_ASSIGN_OR_RETURN(const Json* parameters, ArrayMember(json, "parameters", what));
  for (const Json& parameter : *parameters) {
    PSD_ASSIGN_OR_RETURN(SavedState state, StateFrom(parameter, what));
    optimizer.parameters.push_back(std::move(state));
  }
  return optimizer;
}

absl::Status ReadFormat(const Json& json) {
  PSD_ASSIGN_OR_RETURN(std::string format, StringMember(json, "format", "the index"));
  if (format != kFormat) return Bad(absl::StrCat("is of the format '", format, "', not psd's"));
  PSD_ASSIGN_OR_RETURN(uint64_t version, UnsignedMember(json, "format_version", "the index"));
  if (version == kIndexFormatVersion) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("the index is of format version ", version,
                                                    "; this psd reads version ",
                                                    kIndexFormatVersion));
}

// Reads the list `key` of `json`; `from` converts each item.
template <typename T>
absl::Status ReadList(const Json& json, const char* key, absl::StatusOr<T> (*from)(const Json&),
                      std::vector<T>* items) {
  PSD_ASSIGN_OR_RETURN(const Json* list, ArrayMember(json, key, "the index"));
  for (const Json& each : *list) {
    PSD_ASSIGN_OR_RETURN(T item, from(each));
    items->push_back(std::move(item));
  }
  return absl::OkStatus();
}

// ---- to text

// JSON whose members are in the order in which they were added.
using OrderedJson = nlohmann::ordered_json;

OrderedJson ToJson(const SavedFile& file) {
  return {{"name", file.name}, {"bytes", file.bytes}, {"xxh128", file.xxh128}};
}

OrderedJson ToJson(const SavedValue& value) {
  OrderedJson json;
  json["owner"] = value.owner;
  json["name"] = value.name;
  json["kind"] = std::string(KindName(value.kind));
  json["dtype"] = std::string(SafetensorsTypeName(value.dtype));
  json["shape"] = OrderedJson::array();
  for (int64_t extent : value.shape.extents()) json["shape"].push_back(extent);
  json["requires_grad"] = value.requires_grad;
  json["version"] = value.version;
  json["file"] = value.file;
  return json;
}

OrderedJson ToJson(const SavedState& state) {
  OrderedJson json = {{"owner", state.owner},
                      {"name", state.parameter},
                      {"group", state.group},
                      {"steps", state.steps}};
  json["slots"] = OrderedJson::array();
  for (const SavedSlot& slot : state.slots)
    json["slots"].push_back({{"name", slot.name}, {"file", slot.file}});
  json["file"] = state.file;
  return json;
}

OrderedJson ToJson(const SavedOptimizer& optimizer) {
  OrderedJson json;
  json["name"] = optimizer.name;
  json["type"] = optimizer.type;
  json["groups"] = OrderedJson::array();
  for (const SavedGroup& group : optimizer.groups) {
    json["groups"].push_back({{"options", OrderedJson(group.options)},
                              {"created_with", OrderedJson(group.created_with)}});
  }
  json["settings"] = OrderedJson(optimizer.settings);
  json["loss_scale"] = optimizer.loss_scale;
  json["good_steps"] = optimizer.good_steps;
  json["steps_accepted"] = optimizer.steps_accepted;
  json["parts"] = OrderedJson::array();
  for (const SavedPart& part : optimizer.parts) {
    json["parts"].push_back(OrderedJson{
        {"owner", part.owner}, {"life", part.life}, {"steps_accepted", part.steps_accepted}});
  }
  json["parameters"] = OrderedJson::array();
  for (const SavedState& state : optimizer.parameters) json["parameters"].push_back(ToJson(state));
  return json;
}

template <typename T>
OrderedJson ListToJson(const std::vector<T>& items) {
  OrderedJson list = OrderedJson::array();
  for (const T& item : items) list.push_back(ToJson(item));
  return list;
}

}  // namespace

std::string EncodeIndex(const CheckpointIndex& index) {
  OrderedJson json;
  json["format"] = std::string(kFormat);
  json["format_version"] = kIndexFormatVersion;
  json["created"] = index.created;
  json["psd_version"] = index.psd_version;
  json["files"] = ListToJson(index.files);
  json["values"] = ListToJson(index.values);
  json["optimizers"] = ListToJson(index.optimizers);
  json["left_out"] = OrderedJson(index.left_out);
  return SealIndex(json.dump(1, ' ', /*ensure_ascii=*/true, OrderedJson::error_handler_t::replace));
}

absl::StatusOr<CheckpointIndex> DecodeIndex(absl::string_view text) {
  PSD_ASSIGN_OR_RETURN(Json json, ParseJson(text, "the index"));
  PSD_RETURN_IF_ERROR(ReadFormat(json));  // before the seal, because other formats may not have one
  PSD_RETURN_IF_ERROR(CheckIndexSeal(text));
  CheckpointIndex index;
  PSD_ASSIGN_OR_RETURN(index.created, StringMember(json, "created", "the index"));
  PSD_ASSIGN_OR_RETURN(index.psd_version, StringMember(json, "psd_version", "the index"));
  PSD_RETURN_IF_ERROR(ReadList(json, "files", FileFrom, &index.files));
  PSD_RETURN_IF_ERROR(ReadList(json, "values", ValueFrom, &index.values));
  PSD_RETURN_IF_ERROR(ReadList(json, "optimizers", OptimizerFrom, &index.optimizers));
  PSD_ASSIGN_OR_RETURN(const Json* left_out, ArrayMember(json, "left_out", "the index"));
  PSD_ASSIGN_OR_RETURN(index.left_out, Strings(*left_out, "something left out"));
  PSD_RETURN_IF_ERROR(CheckIndex(index));
  return index;
}

}  // namespace psd::checkpoint
