#pragma once

// Decides which part of a save is loaded: all of it, or only what is missing in a job. Pure.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/model_parts.h"
#include "core/base/ids.h"
#include "core/checkpoint/checkpoint_index.h"
#include "core/checkpoint/placement.h"

namespace psd {

// A part that stays as it is, and the state in which it was found.
struct KeptPart {
  GlobalId life;
  uint64_t steps = 0;
};

// Says which parts of one optimizer are loaded.
struct OptimizerShare {
  bool loaded = false;                   // whether the optimizer begins another life
  std::map<std::string, KeptPart> kept;  // by owner
  // The life that an earlier, unfinished load has given to some parts, and that this load gives to
  // the others. Without an id the load begins a new life.
  GlobalId begun;
};

struct LoadShare {
  std::vector<bool> values;                // for each value of the index, whether it is loaded
  std::vector<OptimizerShare> optimizers;  // for each optimizer of the index
};

// Returns the share that loads everything.
LoadShare AllOf(const checkpoint::CheckpointIndex& index);

// Chooses the values and optimizers of the save that `contents`, the present contents of the
// owners, lack. An owner that has lost its part of an optimizer of the save lacks everything. Any
// other owner lacks the values that it does not have, and those that no optimizer steps and that
// have not changed since they were made.
// Errors: FAILED_PRECONDITION if a part that stays steps a value that is missing, or if parts have
// several lives and no load can be finished. Unless `accept_skew`, also if a part that stays has
// another life than in the save, or has taken another number of steps.
absl::StatusOr<LoadShare> MissingOf(const checkpoint::CheckpointIndex& index,
                                    const checkpoint::Placement& placement,
                                    const ContentsByOwner& contents, bool accept_skew);

// Checks that missing values can go back to the owners that had them. Errors: FAILED_PRECONDITION
// for an owner of the save that is neither among `owners` nor mapped to one of them by `owner_map`.
absl::Status CheckSavedOwners(const checkpoint::CheckpointIndex& index,
                              const std::vector<std::string>& owners,
                              const std::map<std::string, std::string>& owner_map);

}  // namespace psd
