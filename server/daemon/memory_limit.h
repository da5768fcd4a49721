#pragma once

// How much memory this process may take, as the machine and its control groups say.

#include <cstddef>
#include <cstdint>
#include <string>

namespace psd::server {

struct MemoryLimit {
  uint64_t bytes = 0;
  std::string source;  // "the machine's memory", "the limit of control group /sys/fs/cgroup/a"
};

// The least of the machine's memory and of the limits of all control groups that this process is
// in, of version 1 and 2, every ancestor included. `root` is prepended to all paths: a test's own
// /proc and /sys. Where /proc/meminfo is hidden, the system call sysinfo answers instead.
MemoryLimit FindMemoryLimit(const std::string& root = "");

// 80 % of `limit`, divided by `daemons_on_host` (at least 1).
size_t DefaultMemoryBudget(const MemoryLimit& limit, int daemons_on_host);

}  // namespace psd::server
