#pragma once

#include "absl/functional/function_ref.h"

namespace psd {

// Something that a thread can do while it waits for a result, so that the result comes sooner: for
// example to receive it itself. Thread-safe.
class WaitHelper {
 public:
  virtual ~WaitHelper() = default;
  // Works until `done` returns true. May return earlier if the thread should rather sleep.
  virtual void HelpUntil(absl::FunctionRef<bool()> done) = 0;
};

}  // namespace psd
