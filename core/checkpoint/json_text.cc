#include "core/checkpoint/json_text.h"

#include <algorithm>
#include <optional>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace psd::checkpoint {
namespace {

// Returns how deeply the brackets outside of strings are nested. This is checked before parsing,
// because the parser needs memory for every level.
int NestingOf(absl::string_view text) {
  int depth = 0, deepest = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      deepest = std::max(deepest, ++depth);
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return deepest;
}

absl::Status Bad(absl::string_view what, absl::string_view problem) {
  return absl::InvalidArgumentError(absl::StrCat(what, ": ", problem));
}

absl::StatusOr<const Json*> Member(const Json& object, const char* key, absl::string_view what) {
  if (!object.is_object()) return Bad(what, "is not a JSON object");
  auto found = object.find(key);
  if (found == object.end()) return Bad(what, absl::StrCat("has no \"", key, "\""));
  return &*found;
}

absl::Status WrongType(const char* key, absl::string_view what, absl::string_view wanted) {
  return Bad(what, absl::StrCat("\"", key, "\" is not ", wanted));
}

}  // namespace

absl::StatusOr<Json> ParseJson(absl::string_view text, absl::string_view what) {
  if (NestingOf(text) > kMaxJsonDepth)
    return Bad(what, absl::StrCat("nests deeper than ", kMaxJsonDepth, " levels"));
  std::vector<std::set<std::string>> keys;
  std::optional<std::string> repeated;
  const auto watch = [&](int, Json::parse_event_t event, Json& parsed) {
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    if (event == Json::parse_event_t::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (!keys.back().insert(key).second) repeated = key;
    }
    return true;
  };
  Json json = Json::parse(text.begin(), text.end(), watch, /*allow_exceptions=*/false);
  if (json.is_discarded()) return Bad(what, "is not valid JSON");
  if (repeated.has_value()) return Bad(what, absl::StrCat("has \"", *repeated, "\" twice"));
  return json;
}

absl::StatusOr<std::string> StringMember(const Json& object, const char* key,
                                         absl::string_view what) {
  PSD_ASSIGN_OR_RETURN(const Json* member, Member(object, key, what));
  if (!member->is_string()) return WrongType(key, what, "a string");
  return member->get_ref<const std::string&>();
}

absl::StatusOr<uint64_t> UnsignedMember(const Json& object, const char* key,
                                        absl::string_view what) {
  PSD_ASSIGN_OR_RETURN(const Json* member, Member(object, key, what));
  if (!member->is_number_unsigned()) return WrongType(key, what, "a whole number from 0 to 2^64-1");
  return member->get<uint64_t>();
}

absl::StatusOr<double> NumberMember(const Json& object, const char* key, absl::string_view what) {
  PSD_ASSIGN_OR_RETURN(const Json* member, Member(object, key, what));
  if (!member->is_number()) return WrongType(key, what, "a number");
  return member->get<double>();
}

absl::StatusOr<bool> BoolMember(const Json& object, const char* key, absl::string_view what) {
  PSD_ASSIGN_OR_RETURN(const Json* member, Member(object, key, what));
  if (!member->is_boolean()) return WrongType(key, what, "true or false");
  return member->get<bool>();
}

absl::StatusOr<const Json*> ArrayMember(const Json& object, const char* key,
                                        absl::string_view what) {
  PSD_ASSIGN_OR_RETURN(const Json* member, Member(object, key, what));
  if (!member->is_array()) return WrongType(key, what, "a list");
  return member;
}

absl::StatusOr<const Json*> ObjectMember(const Json& object, const char* key,
                                         absl::string_view what) {
  PSD_ASSIGN_OR_RETURN(const Json* member, Member(object, key, what));
  if (!member->is_object()) return WrongType(key, what, "an object");
  return member;
}

}  // namespace psd::checkpoint
