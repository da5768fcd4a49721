#pragma once

// The time that is left of a timeout. Internal to client/.

#include <algorithm>

#include "absl/time/time.h"
#include "core/base/clock.h"

namespace psd {

// Returns the time until `until`, a time of Clock::Steady(), but at least 1 ms, as a timeout must
// be positive.
inline absl::Duration TimeLeft(absl::Time until) {
  return std::max(until - Clock::Steady().Now(), absl::Milliseconds(1));
}

}  // namespace psd
