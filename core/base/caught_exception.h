#pragma once

// Turns exceptions of foreign code into statuses, at the place where that code is called.

#include <type_traits>
#include <utility>

#include "absl/status/status.h"

namespace psd {

// Returns the exception that is being handled as the error INTERNAL "threw std::runtime_error:
// text", with the first 1,000 bytes of the text. Thread-safe.
// Requires: the caller is inside a catch block.
absl::Status CaughtException();

// Returns the result of `function(arguments...)`, a Status or a type made from one, or
// CaughtException() if it throws.
template <typename F, typename... A>
std::invoke_result_t<F, A...> Catching(F&& function, A&&... arguments) {
  try {
    return std::forward<F>(function)(std::forward<A>(arguments)...);
  } catch (...) {
    return CaughtException();
  }
}

}  // namespace psd
