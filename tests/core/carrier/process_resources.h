#pragma once

// Counts the resources of this process that shared memory uses.

#include <dirent.h>

#include <fstream>
#include <memory>
#include <ostream>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "tests/core/carrier/recorder.h"

namespace psd::carrier {

struct ProcessResources {
  size_t descriptors = 0;
  size_t rings = 0;  // segments of rings that are mapped, this process's own and those of others
  size_t lent = 0;   // segments for lent messages that are mapped to be read only

  friend bool operator==(const ProcessResources& a, const ProcessResources& b) {
    return a.descriptors == b.descriptors && a.rings == b.rings && a.lent == b.lent;
  }
  friend std::ostream& operator<<(std::ostream& out, const ProcessResources& resources) {
    return out << resources.descriptors << " descriptors, " << resources.rings << " rings, "
               << resources.lent << " lent segments";
  }
};

inline ProcessResources CountResources() {
  ProcessResources resources;
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir("/proc/self/fd"), &closedir);
  while (readdir(folder.get()) != nullptr) ++resources.descriptors;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (absl::StrContains(line, "memfd:psd-rings")) ++resources.rings;
    if (absl::StrContains(line, "memfd:psd-segment") && absl::StrContains(line, " r--s ")) {
      ++resources.lent;
    }
  }
  return resources;
}

// Calls `release` until this process uses as much as `expected`. Returns what it uses then, or
// after kPatience.
inline ProcessResources AwaitResources(const ProcessResources& expected,
                                       absl::FunctionRef<void()> release) {
  const absl::Time until = absl::Now() + kPatience;
  while (true) {
    release();
    const ProcessResources resources = CountResources();
    if (resources == expected || absl::Now() >= until) return resources;
    absl::SleepFor(absl::Milliseconds(1));
  }
}

}  // namespace psd::carrier
