#include "tests/attack/limited_owner.h"

#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace psd::attack {
namespace {

// The parents below which a group can be made, and the files that contain their limits.
struct Hierarchy {
  const char* parent;
  const char* limit_file;
};
constexpr Hierarchy kHierarchies[] = {
    {"/sys/fs/cgroup/memory", "memory.limit_in_bytes"},
    {"/sys/fs/cgroup", "memory.max"},
};

bool Write(const std::string& path, const std::string& text) {
  std::ofstream file(path);
  file << text << std::flush;
  return file.good();
}

crash::DaemonOptions OptionsOf(size_t budget_bytes, const MemoryGroup& group) {
  crash::DaemonOptions options;
  options.memory_budget = absl::StrCat(budget_bytes);
  options.runner = group.Runner();
  return options;
}

}  // namespace

MemoryGroup::MemoryGroup(size_t limit_bytes) {
  static int made = 0;
  const std::string name = absl::StrCat("/psd_attack_", getpid(), "_", ++made);
  for (const Hierarchy& hierarchy : kHierarchies) {
    const std::string folder = hierarchy.parent + name;
    if (mkdir(folder.c_str(), 0755) != 0) continue;
    if (Write(absl::StrCat(folder, "/", hierarchy.limit_file), absl::StrCat(limit_bytes))) {
      folder_ = folder;
      return;
    }
    rmdir(folder.c_str());
  }
}

MemoryGroup::~MemoryGroup() {
  // The kernel refuses this while it is still cleaning up the last process of the group.
  if (!folder_.empty()) crash::Eventually([this] { return rmdir(folder_.c_str()) == 0; });
}

std::vector<std::string> MemoryGroup::Runner() const {
  if (folder_.empty()) return {};
  return {"/bin/sh", "-c", absl::StrCat("echo $$ > ", folder_, "/cgroup.procs; exec \"$@\""), "sh"};
}

LimitedOwner::LimitedOwner(size_t budget_bytes)
    : limit_bytes_(budget_bytes / 8 * 10),
      group_(limit_bytes_),
      daemon_(OptionsOf(budget_bytes, group_)) {}

bool LimitedOwner::Runs() {
  return waitpid(daemon_.process().pid(), nullptr, WNOHANG) == 0;
}

size_t LimitedOwner::StatusField(const std::string& name) const {
  std::ifstream file(absl::StrCat("/proc/", daemon_.process().pid(), "/status"));
  for (std::string line; std::getline(file, line);) {
    absl::string_view text = line;
    size_t kib = 0;
    if (!absl::ConsumePrefix(&text, name) || !absl::ConsumeSuffix(&text, "kB")) continue;
    if (absl::SimpleAtoi(text, &kib)) return kib << 10;
  }
  return 0;
}

}  // namespace psd::attack
