#include "core/base/system_limits.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace psd {
namespace {

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

// Returns a number from /proc/self/status; 0 if it is not there.
unsigned long StatusNumber(const char* status, const char* name) {
  const char* at = std::strstr(status, name);
  return at == nullptr ? 0 : std::strtoul(at + std::strlen(name), nullptr, 10);
}

}  // namespace

void DescribeSystemLimits(char* text, size_t size) {
  char status[4096] = {};
  const int file = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
  if (file < 0 || read(file, status, sizeof(status) - 1) < 0) status[0] = '\0';
  if (file >= 0) close(file);
  std::snprintf(
      text, size,
      "in use: %lu threads, %lu KiB of address space; limits: threads of this user %s "
      "(RLIMIT_NPROC, ulimit -u), address space %s bytes (RLIMIT_AS, ulimit -v), and those of the "
      "control group (pids.max, memory.max; systemd: TasksMax, MemoryMax); raise the one that is "
      "reached",
      StatusNumber(status, "Threads:"), StatusNumber(status, "VmSize:"),
      SoftLimit(RLIMIT_NPROC).text, SoftLimit(RLIMIT_AS).text);
}

}  // namespace psd
