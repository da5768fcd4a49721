#pragma once

// JSON from outside: parses it without exceptions, and reads members with checks of their types.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace psd::checkpoint {

using Json = nlohmann::json;

// The deepest nesting that is accepted.
inline constexpr int kMaxJsonDepth = 16;

// Parses `text`, which error messages call `what`. Errors: INVALID_ARGUMENT if it is not JSON (this
// includes bad UTF-8), nests too deeply, or has an object with the same key twice.
absl::StatusOr<Json> ParseJson(absl::string_view text, absl::string_view what);

// Return a member of `object`. Errors: INVALID_ARGUMENT, naming `what` and the key, if `object` is
// not an object, has no such member, or has one of another type.
absl::StatusOr<std::string> StringMember(const Json& object, const char* key,
                                         absl::string_view what);
absl::StatusOr<uint64_t> UnsignedMember(const Json& object, const char* key,
                                        absl::string_view what);
absl::StatusOr<double> NumberMember(const Json& object, const char* key, absl::string_view what);
absl::StatusOr<bool> BoolMember(const Json& object, const char* key, absl::string_view what);
absl::StatusOr<const Json*> ArrayMember(const Json& object, const char* key,
                                        absl::string_view what);
absl::StatusOr<const Json*> ObjectMember(const Json& object, const char* key,
                                         absl::string_view what);

}  // namespace psd::checkpoint
