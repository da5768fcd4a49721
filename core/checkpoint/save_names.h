#pragma once

// The names of files and folders in a folder of saves (see save_folder.h). Pure.

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace psd::checkpoint {

inline constexpr absl::string_view kLatestFileName = "latest";
inline constexpr absl::string_view kUnfinishedPrefix = ".saving-";
// The token: a file in an unfinished save, with this many random hexadecimal digits, while owners
// check whether they see the same folder (see checkpoint_root.h).
inline constexpr absl::string_view kTokenFileName = "token";
inline constexpr size_t kTokenDigits = 32;

// Whether the name has 1 to 255 characters, each of them a letter, a digit or one of . _ - :, and
// begins with a letter or digit.
bool IsPlainName(absl::string_view name);

std::string UnfinishedName(absl::string_view unique);
bool IsUnfinishedName(absl::string_view name);

// Return the names of the files of one owner, for example "values-owner0.safetensors" and
// "state-owner0-3.safetensors".
std::string ValuesFileName(absl::string_view owner);
std::string StateFileName(absl::string_view owner, size_t number);
// Whether `name` is the name of a file of `owner`.
bool IsFileOf(absl::string_view owner, absl::string_view name);

}  // namespace psd::checkpoint
