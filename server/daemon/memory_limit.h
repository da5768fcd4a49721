#pragma once

// Finds how much memory this process may take, by the machine's memory and its control groups.

#include <cstddef>
#include <cstdint>
#include <string>

namespace psd::server {

struct MemoryLimit {
  uint64_t bytes = 0;
  std::string source;  // "the machine's memory", "the limit of control group /sys/fs/cgroup/a"
};

// Returns the least of the machine's memory and the limits of all control groups that this process
// is in, of version 1 and 2, including all ancestors. `root` is put before all paths, so that a
// test can give its own /proc and /sys. If /proc/meminfo is hidden, sysinfo(2) is used.
MemoryLimit FindMemoryLimit(const std::string& root = "");

// Returns 80 % of a daemon's share of `limit`, which is divided by `daemons_on_host` (at least 1).
// If the share is below 320 MiB, leaves 64 MiB of it for the program itself, but at most half.
size_t DefaultMemoryBudget(const MemoryLimit& limit, int daemons_on_host);

}  // namespace psd::server
