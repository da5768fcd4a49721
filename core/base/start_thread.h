#pragma once

#include <thread>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace psd {

// A thread that runs `run`. `what` names it in the error: "a thread for timers".
// Errors: RESOURCE_EXHAUSTED when the system refuses it, naming what is in use and the limits.
absl::StatusOr<std::thread> StartThread(absl::string_view what, absl::AnyInvocable<void()> run);

// Checks that `count` threads can exist at once, by starting and ending that many. `what` says what
// they are for: "the network". To be used before a library starts threads of its own that cannot
// report a refusal. Errors: as StartThread.
absl::Status CheckRoomForThreads(absl::string_view what, int count);

}  // namespace psd
