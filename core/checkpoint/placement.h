#pragma once

// Which owner each value of a save goes to. Pure.

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/checkpoint/checkpoint_index.h"

namespace psd::checkpoint {

struct PlacementOptions {
  // Where the values of a saved owner go: saved name -> name now. What is not named here goes back
  // to the owner of its name.
  std::map<std::string, std::string> owners;
  // All values are spread anew by their bytes, wherever they were.
  bool spread = false;
};

struct Placement {
  std::vector<std::string> values;  // the owner of each of the index's values
  // The owner of each parameter of each of the index's optimizers.
  std::vector<std::vector<std::string>> optimizers;
};

// Values whose owner is none of `owners` are spread over these, the largest first, each to the
// owner with the fewest bytes (state included) so far.
// Errors: INVALID_ARGUMENT for no owners, or a name in `options` that is none; ALREADY_EXISTS when
// two values or two optimizers of one name would meet on one owner.
absl::StatusOr<Placement> Place(const CheckpointIndex& index,
                                const std::vector<std::string>& owners,
                                const PlacementOptions& options);

}  // namespace psd::checkpoint
