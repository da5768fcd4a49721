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
  // Of each of the index's optimizers: whether any of its parts is loaded, and the owners whose
  // parts stay as they are.
  std::vector<bool> optimizers;
  std::vector<std::set<std::string>> kept;
};

LoadShare AllOf(const checkpoint::CheckpointIndex& index);

// What is missing among `contents`, what the owners host: everything of an owner that has lost its
// part of an optimizer of the save, and elsewhere the values that are not there, or that no
// optimizer steps and nothing has changed since they were made.
// Errors: FAILED_PRECONDITION, unless `accept_skew`, when a part that stays is of another life than
// the save, or has taken another number of steps.
absl::StatusOr<LoadShare> MissingOf(const checkpoint::CheckpointIndex& index,
                                    const checkpoint::Placement& placement,
                                    const ContentsByOwner& contents, bool accept_skew);

}  // namespace psd
