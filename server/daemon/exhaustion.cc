#include "server/daemon/exhaustion.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <system_error>

namespace psd::server {
namespace {

// Nothing here takes memory: there may be none.

int exit_code_when_exhausted = 1;
std::terminate_handler otherwise = nullptr;

struct Limit {
  char text[32];
};

Limit SoftLimit(__rlimit_resource resource) {
  Limit limit = {"unknown"};
  rlimit both = {};
  if (getrlimit(resource, &both) != 0) return limit;
  if (both.rlim_cur == RLIM_INFINITY) {
    std::snprintf(limit.text, sizeof(limit.text), "none");
  } else {
    std::snprintf(limit.text, sizeof(limit.text), "%llu",
                  static_cast<unsigned long long>(both.rlim_cur));
  }
  return limit;
}

// A number of /proc/self/status; 0 if it is not there.
unsigned long StatusNumber(const char* status, const char* name) {
  const char* at = std::strstr(status, name);
  return at == nullptr ? 0 : std::strtoul(at + std::strlen(name), nullptr, 10);
}

[[noreturn]] void Report(const char* refused) {
  char status[4096] = {};
  const int file = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
  if (file < 0 || read(file, status, sizeof(status) - 1) < 0) status[0] = '\0';
  char text[1024];
  const int length = std::snprintf(
      text, sizeof(text),
      "psd: the system refuses %s; in use: %lu threads, %lu KiB of address space; limits: threads "
      "of this user %s (RLIMIT_NPROC, ulimit -u), address space %s bytes (RLIMIT_AS, ulimit -v), "
      "and those of the control group (pids.max, memory.max; systemd: TasksMax, MemoryMax); raise "
      "the one that is reached\n",
      refused, StatusNumber(status, "Threads:"), StatusNumber(status, "VmSize:"),
      SoftLimit(RLIMIT_NPROC).text, SoftLimit(RLIMIT_AS).text);
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
