#pragma once

// The exit code of a failed command.

#include "absl/status/status.h"

namespace psd::cli {

inline constexpr int kExitFailure = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitOfSignal = 128;  // plus the number of the signal

// Returns `status` with the exit code for psctl attached. An OK status is returned unchanged.
absl::Status WithExitCode(absl::Status status, int code);
// Returns the exit code of a failure; kExitFailure if it has none.
int ExitCodeOf(const absl::Status& failure);

}  // namespace psd::cli
