#pragma once

// The rule for worker names. A name appears in messages, files of saves, logs and tables, and it
// comes from outside, so it is checked where it is configured and where a peer introduces itself.

#include <cstddef>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace psd {

inline constexpr size_t kMaxWorkerNameBytes = 127;
// The rule as text, for messages and documentation.
inline constexpr absl::string_view kWorkerNameRule = "1 to 127 characters of A-Z a-z 0-9 _ : -";

// Checks the rule. Errors: INVALID_ARGUMENT with the rule and the name.
absl::Status CheckWorkerName(absl::string_view name);

}  // namespace psd
