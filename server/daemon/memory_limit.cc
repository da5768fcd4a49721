#include "server/daemon/memory_limit.h"

#include <sys/sysinfo.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace psd::server {
namespace {

uint64_t MachineMemory(const std::string& root) {
  std::ifstream file(root + "/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    absl::string_view text = line;
    uint64_t kib = 0;
    if (!absl::ConsumePrefix(&text, "MemTotal:") || !absl::ConsumeSuffix(&text, "kB")) continue;
    if (absl::SimpleAtoi(text, &kib)) return kib << 10;
  }
  struct sysinfo info = {};
  if (sysinfo(&info) != 0) return UINT64_MAX;
  return static_cast<uint64_t>(info.totalram) * info.mem_unit;
}

// Returns nullopt if there is no such file or it sets no limit ("max").
std::optional<uint64_t> ReadLimit(const std::string& path) {
  std::ifstream file(path);
  std::string text;
  uint64_t bytes = 0;
  if (!std::getline(file, text) || !absl::SimpleAtoi(text, &bytes)) return std::nullopt;
  return bytes;
}

// Lowers `least` to the limits of the group `path` below `mount` and of all its ancestors. In a
// container `path` may be that of the host, whose groups are not visible; the nearest visible group
// is then the mount itself.
void TakeGroups(const std::string& root, const std::string& mount, absl::string_view path,
                absl::string_view file, MemoryLimit* least) {
  std::string group = mount;
  const auto take = [&] {
    const std::optional<uint64_t> limit = ReadLimit(absl::StrCat(root, group, "/", file));
    if (!limit.has_value() || *limit >= least->bytes) return;
    *least = {*limit, absl::StrCat("the limit of control group ", group)};
  };
  take();
  for (absl::string_view part : absl::StrSplit(path, '/', absl::SkipEmpty())) {
    if (part == "..") continue;
    absl::StrAppend(&group, "/", part);
    take();
  }
}

}  // namespace

MemoryLimit FindMemoryLimit(const std::string& root) {
  MemoryLimit least{MachineMemory(root), "the machine's memory"};
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    // Version 2 has "0::/a/b", version 1 "9:cpu,memory:/a/b". The path may contain colons.
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3) continue;
    if (parts[0] == "0" && parts[1].empty()) {
      TakeGroups(root, "/sys/fs/cgroup", parts[2], "memory.max", &least);
      TakeGroups(root, "/sys/fs/cgroup/unified", parts[2], "memory.max", &least);
    }
    for (absl::string_view controller : absl::StrSplit(parts[1], ',')) {
      if (controller == "memory") {
        TakeGroups(root, "/sys/fs/cgroup/memory", parts[2], "memory.limit_in_bytes", &least);
      }
    }
  }
  return least;
}

size_t DefaultMemoryBudget(const MemoryLimit& limit, int daemons_on_host) {
  // Each program needs about 50 MiB that no budget counts: code, stacks, the network library.
  constexpr uint64_t kLeftFree = uint64_t{64} << 20;
  const auto daemons = static_cast<uint64_t>(daemons_on_host);
  const uint64_t share = limit.bytes / daemons;
  const uint64_t without_program = share > 2 * kLeftFree ? share - kLeftFree : share / 2;
  return static_cast<size_t>(std::min(limit.bytes / 10 * 8 / daemons, without_program));
}

}  // namespace psd::server
