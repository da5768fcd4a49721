#include "core/base/start_thread.h"

#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/remedy.h"
#include "core/base/system_limits.h"

namespace psd {

absl::StatusOr<std::thread> StartThread(absl::string_view what, absl::AnyInvocable<void()> run) {
  try {
    return std::thread(std::move(run));
  } catch (const std::system_error& error) {
    char limits[1024];
    DescribeSystemLimits(limits, sizeof(limits));
    return WithRemedy(
        absl::ResourceExhaustedError(
            absl::StrCat("the system refuses ", what, " (", error.code().message(), "); ", limits)),
        "raise the limit that is reached, or ask for fewer threads");
  }
}

}  // namespace psd
