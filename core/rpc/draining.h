#pragma once

// The error of a worker that is about to stop.

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace psd::rpc {

// Returns UNAVAILABLE, saying that `worker` is draining and that `what` was not applied there.
// `what` is the subject of a clause: "the call", "the step". The error's detail has the remedy, and
// says that the fate is known.
absl::Status DrainingError(absl::string_view worker, absl::string_view what);

}  // namespace psd::rpc
