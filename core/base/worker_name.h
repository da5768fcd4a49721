#pragma once

// What a worker may be called. A name stands in messages, files of saves, logs and tables, and it
// comes from outside: it is checked where it is configured and where a peer introduces itself.

#include <cstddef>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace psd {

inline constexpr size_t kMaxWorkerNameBytes = 127;
// For messages and documentation.
inline constexpr absl::string_view kWorkerNameRule = "1 to 127 characters of A-Z a-z 0-9 _ : -";

// Errors: INVALID_ARGUMENT with the rule and the name.
absl::Status CheckWorkerName(absl::string_view name);

}  // namespace psd
