#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace psd {

// Returns RESOURCE_EXHAUSTED saying that the system refuses `what`, for the reason `error` (an
// errno), which limit of the process, its control group or the machine that is, by the name under
// which it is raised, and the remedy. Shared memory is never needed, so the remedy says how it is
// turned off, too. `what` is for example "a socket for unix:@psd/127.0.0.1:7071".
absl::Status SystemRefusal(absl::string_view what, int error);

}  // namespace psd
