#pragma once

// The exit code of a failed command.

#include "absl/status/status.h"

namespace psd::cli {

inline constexpr int kExitFailure = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitOfSignal = 128;  // and the number of the signal

// Returns `status` with the exit code that psctl ends with. An OK status is returned unchanged.
absl::Status WithExitCode(absl::Status status, int code);
// Returns the code of a failure; kExitFailure if it has none.
int ExitCodeOf(const absl::Status& failure);

}  // namespace psd::cli
