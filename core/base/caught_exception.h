#pragma once

// Exceptions of code that is not ours: they end where that code is called, as errors.

#include <type_traits>
#include <utility>

#include "absl/status/status.h"

namespace psd {

// The exception that is being handled, as INTERNAL "threw std::runtime_error: its text" (the text's
// first 1,000 bytes). Thread-safe.
// Requires: it is called inside a catch block.
absl::Status CaughtException();

// What `function(arguments...)` returns, a Status or something made of one; CaughtException() if
// it throws.
template <typename F, typename... A>
std::invoke_result_t<F, A...> Catching(F&& function, A&&... arguments) {
  try {
    return std::forward<F>(function)(std::forward<A>(arguments)...);
  } catch (...) {
    return CaughtException();
  }
}

}  // namespace psd
