#include "server/daemon/exhaustion.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>
#include <system_error>

#include "core/base/system_limits.h"

namespace psd::server {
namespace {

// No code in this file may allocate memory: there may be none.

int exit_code_when_exhausted = 1;
std::terminate_handler otherwise = nullptr;

[[noreturn]] void Report(const char* refused) {
  char limits[1024];
  DescribeSystemLimits(limits, sizeof(limits));
  char text[1200];
  const int length =
      std::snprintf(text, sizeof(text), "psd: the system refuses %s; %s\n", refused, limits);
  // Whether or not anybody reads it.
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, text, static_cast<size_t>(length));
  std::_Exit(exit_code_when_exhausted);
}

void OnTerminate() {
  try {
    if (std::exception_ptr thrown = std::current_exception()) std::rethrow_exception(thrown);
  } catch (const std::bad_alloc&) {
    Report("memory");
  } catch (const std::system_error& error) {
    if (error.code() == std::errc::resource_unavailable_try_again) Report("a thread");
  } catch (...) {
  }
  otherwise();
}

}  // namespace

void ExitWhenExhausted(int exit_code) {
  exit_code_when_exhausted = exit_code;
  otherwise = std::set_terminate(&OnTerminate);
}

}  // namespace psd::server
