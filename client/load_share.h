#pragma once

// Which part of a save is loaded: all of it, or only what is missing in a job. Pure.

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

// A part that stays as it is, as it was found.
struct KeptPart {
  GlobalId life;
  uint64_t steps = 0;
};

// What is loaded of one optimizer.
struct OptimizerShare {
  bool loaded = false;                   // whether it begins another life
  std::map<std::string, KeptPart> kept;  // by owner
  // The life that it begins, if a load has stopped when some of its parts were in it already; none:
  // a new one.
  GlobalId begun;
};

struct LoadShare {
  std::vector<bool> values;                // of the index's: whether it is loaded
  std::vector<OptimizerShare> optimizers;  // of the index's
};

// Returns the share that loads everything.
LoadShare AllOf(const checkpoint::CheckpointIndex& index);

// Chooses what to load: what the save has and `contents`, the owners' present contents, lack. An
// owner that has lost its part of an optimizer of the save lacks everything. Any other owner lacks
// the values that are not there, and those that no optimizer steps and that have not changed since
// they were made.
// Errors: FAILED_PRECONDITION when a value that a part steps which stays is missing, or when parts
// are of several lives without a load that could be finished; unless `accept_skew`, when a part
// that stays is of another life than the save, or has taken another number of steps.
absl::StatusOr<LoadShare> MissingOf(const checkpoint::CheckpointIndex& index,
                                    const checkpoint::Placement& placement,
                                    const ContentsByOwner& contents, bool accept_skew);

// What is missing goes back to where it was. Errors: FAILED_PRECONDITION for an owner of the save
// that is neither among `owners` nor mapped to one of them by `owner_map`.
absl::Status CheckSavedOwners(const checkpoint::CheckpointIndex& index,
                              const std::vector<std::string>& owners,
                              const std::map<std::string, std::string>& owner_map);

}  // namespace psd
