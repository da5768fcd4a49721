#pragma once

// Which part of a save is loaded: all of it, or only what is missing in a job. Pure.

#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/model_parts.h"
#include "core/checkpoint/checkpoint_index.h"
#include "core/checkpoint/placement.h"

namespace psd {

struct LoadShare {
  std::vector<bool> values;  // of the index's: whether it is loaded
  // Both have one element for each optimizer of the index. `optimizers` says whether any of its
  // parts is loaded; `kept` names the owners whose parts stay as they are.
  std::vector<bool> optimizers;
  std::vector<std::set<std::string>> kept;
};

LoadShare AllOf(const checkpoint::CheckpointIndex& index);

// Chooses what to load: what the save has and `contents`, the owners' present contents, lack. An
// owner that has lost its part of an optimizer of the save lacks everything. Any other owner lacks
// the values that are not there, and those that no optimizer steps and that have not changed since
// they were made.
// Errors: FAILED_PRECONDITION, unless `accept_skew`, when a part that stays is of another life than
// the save, or has taken another number of steps.
absl::StatusOr<LoadShare> MissingOf(const checkpoint::CheckpointIndex& index,
                                    const checkpoint::Placement& placement,
                                    const ContentsByOwner& contents, bool accept_skew);

}  // namespace psd
