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
  size_t segments = 0;  // mapped, this process's own and those of others

  friend bool operator==(const ProcessResources& a, const ProcessResources& b) {
    return a.descriptors == b.descriptors && a.segments == b.segments;
  }
  friend std::ostream& operator<<(std::ostream& out, const ProcessResources& resources) {
    return out << resources.descriptors << " descriptors, " << resources.segments << " segments";
  }
};

inline ProcessResources CountResources() {
  ProcessResources resources;
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir("/proc/self/fd"), &closedir);
  while (readdir(folder.get()) != nullptr) ++resources.descriptors;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (absl::StrContains(line, "memfd:psd-rings")) ++resources.segments;
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
