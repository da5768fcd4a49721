#pragma once

// A pause between two tries. Internal to client/.

#include "absl/time/time.h"
#include "client/worker.h"

namespace psd {

// Waits 20 ms before another try. Returns false at once if that would be after `until`, a time of
// Clock::Steady(), and false if the worker is shut down meanwhile.
bool PauseBefore(absl::Time until, Worker& worker);

}  // namespace psd
