#pragma once

// The members of the job: one agent and kObservers observers, attached to one owner.

#include <string>

#include "absl/strings/str_cat.h"
#include "client/psd.h"

namespace psd::examples {

inline constexpr int kObservers = 2;

inline std::string ObserverName(int number) {
  return absl::StrCat("observer", number);
}

// Returns the options of a member. The members are a declared group, so they can wait for each
// other at the beginning and at the end.
inline WorkerOptions MemberOptions(const std::string& name, const std::string& address) {
  WorkerOptions options;
  options.name = name;
  options.owners = {{"owner0", address}};
  options.group_size = 1 + kObservers;
  return options;
}

}  // namespace psd::examples
