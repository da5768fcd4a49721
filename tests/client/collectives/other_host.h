#pragma once

// Trainers of a group that are on another host than the rest.

#include <utility>

#include "absl/strings/str_cat.h"
#include "client/psd.h"
#include "tests/client/collectives/group_world.h"
#include "tests/client/test_world.h"

namespace psd {

// Adds a trainer that shares no memory with the others, as if it were on a host of its own.
// Requires: the world has real connections.
inline void AddOnOtherHost(GroupWorld& world) {
  WorkerOptions options = world.Options(absl::StrCat("t", world.workers.size()));
  options.shared_memory = false;
  world.workers.push_back(Must(Worker::Start(std::move(options))));
}

}  // namespace psd
