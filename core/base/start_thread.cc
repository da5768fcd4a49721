#include "core/base/start_thread.h"

#include <future>
#include <system_error>
#include <utility>
#include <vector>

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

absl::Status CheckRoomForThreads(absl::string_view what, int count) {
  std::promise<void> all_tried;
  const std::shared_future<void> end = all_tried.get_future().share();
  std::vector<std::thread> threads;
  absl::Status status;
  while (status.ok() && static_cast<int>(threads.size()) < count) {
    absl::StatusOr<std::thread> thread =
        StartThread(absl::StrCat("thread ", threads.size() + 1, " of ", count, " for ", what),
                    [end] { end.wait(); });
    if (thread.ok()) threads.push_back(*std::move(thread));
    status = thread.status();
  }
  all_tried.set_value();
  for (std::thread& thread : threads) thread.join();
  return status;
}

}  // namespace psd
