#pragma once

#include <thread>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"

namespace psd {

// A thread that runs `run`. Errors: RESOURCE_EXHAUSTED when the system refuses one.
absl::StatusOr<std::thread> StartThread(absl::AnyInvocable<void()> run);

}  // namespace psd
