#include "server/daemon/stop_bound.h"

#include <signal.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "core/base/system_limits.h"

namespace psd::server {
namespace {

int exit_code_when_late = 1;
char bound_text[64];

void OnLate(int /*signal*/) {
  char limits[1024];
  DescribeSystemLimits(limits, sizeof(limits));
  char text[1500];
  const int length = std::snprintf(
      text, sizeof(text),
      "psd: the stop was cut off because it took longer than drain_timeout and 10 seconds (%s); "
      "most likely a registered function does not return, or gRPC waits for a thread that the "
      "system has refused it; %s\n",
      bound_text, limits);
  // The result is ignored: the process ends whether or not anybody reads the text.
  [[maybe_unused]] const ssize_t written =
      write(STDERR_FILENO, text, std::min(static_cast<size_t>(length), sizeof(text) - 1));
  std::_Exit(exit_code_when_late);
}

}  // namespace

void EndWhenStopTakesLonger(absl::Duration bound, int exit_code) {
  exit_code_when_late = exit_code;
  std::snprintf(bound_text, sizeof(bound_text), "%s", absl::FormatDuration(bound).c_str());
  signal(SIGALRM, &OnLate);
  itimerval timer = {};
  timer.it_value = absl::ToTimeval(bound);
  setitimer(ITIMER_REAL, &timer, nullptr);
}

}  // namespace psd::server
