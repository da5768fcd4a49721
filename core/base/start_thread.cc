#include "core/base/start_thread.h"

#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace psd {

absl::StatusOr<std::thread> StartThread(absl::AnyInvocable<void()> run) {
  try {
    return std::thread(std::move(run));
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the system refuses to start a thread (", error.code().message(),
                     "); raise its limit of threads (TasksMax, pids.max, ulimit -u)"));
  }
}

}  // namespace psd
