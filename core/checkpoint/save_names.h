#pragma once

// What the parts of a folder of saves are called (see save_folder.h). Pure.

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace psd::checkpoint {

inline constexpr absl::string_view kLatestFileName = "latest";
inline constexpr absl::string_view kUnfinishedPrefix = ".saving-";
// In an unfinished save, while owners look whether it is theirs too (see checkpoint_root.h): so
// many random hexadecimal digits.
inline constexpr absl::string_view kTokenFileName = "token";
inline constexpr size_t kTokenDigits = 32;

// 1 to 255 letters, digits and . _ - :, the first a letter or digit.
bool IsPlainName(absl::string_view name);

std::string UnfinishedName(absl::string_view unique);
bool IsUnfinishedName(absl::string_view name);

// The files of one owner: "values-owner0.safetensors", "state-owner0-3.safetensors".
std::string ValuesFileName(absl::string_view owner);
std::string StateFileName(absl::string_view owner, size_t number);
// Whether `name` is one of these.
bool IsFileOf(absl::string_view owner, absl::string_view name);

}  // namespace psd::checkpoint
