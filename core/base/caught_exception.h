#pragma once

// Exceptions of code that is not ours: they end where that code is called, as errors.

#include "absl/status/status.h"

namespace psd {

// The exception that is being handled, as INTERNAL "threw std::runtime_error: its text" (the text's
// first 1,000 bytes). Thread-safe.
// Requires: it is called inside a catch block.
absl::Status CaughtException();

}  // namespace psd
