#pragma once

// Decides which owner each value of a save is loaded into. Pure.

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/checkpoint/checkpoint_index.h"

namespace psd::checkpoint {

struct PlacementOptions {
  // Maps names of saved owners to the owners that get their values now. The values of an owner that
  // is not a key go to the owner of the same name.
  std::map<std::string, std::string> owners;
  // Whether all values of owners that `owners` does not name are spread again by their bytes.
  bool spread = false;
};

struct Placement {
  std::vector<std::string> values;  // the owner for each value of the index
  // For each optimizer of the index, the owner for each of its parameters.
  std::vector<std::vector<std::string>> optimizers;
};

// Returns the placement of a save onto `owners`. Values whose saved owner is not among `owners` are
// spread over `owners`: the largest first, each to the owner that has the fewest bytes (state
// included) so far. Errors: INVALID_ARGUMENT if there are no owners, or `options` names one that
// does not exist; ALREADY_EXISTS if two values or optimizers of one name would be on the same
// owner.
absl::StatusOr<Placement> Place(const CheckpointIndex& index,
                                const std::vector<std::string>& owners,
                                const PlacementOptions& options);

}  // namespace psd::checkpoint
