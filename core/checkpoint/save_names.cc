#include "core/checkpoint/save_names.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/checkpoint/safetensors_format.h"

namespace psd::checkpoint {
namespace {

constexpr size_t kMaxNameBytes = 255;

}  // namespace

bool IsPlainName(absl::string_view name) {
  return !name.empty() && name.size() <= kMaxNameBytes && absl::ascii_isalnum(name[0]) &&
         std::all_of(name.begin(), name.end(), [](unsigned char c) {
           return absl::ascii_isalnum(c) || c == '.' || c == '_' || c == '-' || c == ':';
         });
}

std::string UnfinishedName(absl::string_view unique) {
  return absl::StrCat(kUnfinishedPrefix, unique);
}

bool IsUnfinishedName(absl::string_view name) {
  return name.size() <= kMaxNameBytes && absl::ConsumePrefix(&name, kUnfinishedPrefix) &&
         IsPlainName(name);
}

std::string ValuesFileName(absl::string_view owner) {
  return absl::StrCat("values-", owner, kSafetensorsSuffix);
}

std::string StateFileName(absl::string_view owner, size_t number) {
  return absl::StrCat("state-", owner, "-", number, kSafetensorsSuffix);
}

bool IsFileOf(absl::string_view owner, absl::string_view name) {
  if (name.size() > kMaxNameBytes) return false;
  if (name == ValuesFileName(owner)) return true;
  absl::string_view digits = name;
  size_t number = 0;
  return absl::ConsumePrefix(&digits, absl::StrCat("state-", owner, "-")) &&
         absl::ConsumeSuffix(&digits, kSafetensorsSuffix) && absl::SimpleAtoi(digits, &number) &&
         name == StateFileName(owner, number);
}

}  // namespace psd::checkpoint
