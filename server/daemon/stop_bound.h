#pragma once

#include "absl/time/time.h"

namespace psd::server {

// Ends the process with `exit_code` after `bound`, with a line on standard error that says why.
// Needs no thread and no memory at that time, because a stop most likely hangs where the system has
// refused them. To be called once, when the process begins to stop.
void EndWhenStopTakesLonger(absl::Duration bound, int exit_code);

}  // namespace psd::server
