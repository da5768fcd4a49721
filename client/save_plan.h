#pragma once

// What a save will hold, and in which file each piece of it goes: decided from what the owners say
// of themselves, before anything is copied. Pure.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "core/base/ids.h"
#include "core/checkpoint/checkpoint_index.h"
#include "core/checkpoint/safetensors_codec.h"
#include "core/checkpoint/tensor_file.h"
#include "core/worker/checkpoint_types.h"

namespace psd {

// Where a parameter's state in one optimizer goes.
struct StatePlan {
  GlobalId optimizer_id;
  size_t optimizer = 0;                        // of the index's
  size_t parameter = 0;                        // of the optimizer's
  std::vector<checkpoint::TensorSpec> arrays;  // named by slot
  std::vector<size_t> files;                   // of each array, of the owner's
  size_t step_file = 0;                        // of the count of steps
};

struct ValuePlan {
  size_t value = 0;  // of the index's
  GlobalId id;
  std::vector<StatePlan> states;
  uint64_t bytes = 0;  // state included
  int64_t rows = 0;    // that can be had in parts; 0: only as a whole
};

struct OwnerPlan {
  std::string owner;
  uint64_t steps_accepted = 0;  // by its optimizers, when it described itself
  bool writes_files = false;    // its own, where it can
  std::vector<ValuePlan> values;
  std::vector<checkpoint::FileSpec> files;  // the first holds the values
};

// What is to be saved, and where each piece goes.
struct SavePlan {
  checkpoint::CheckpointIndex index;
  std::vector<OwnerPlan> owners;
  uint64_t bytes = 0;
};

// Adds what `owner` hosts to `plan`, versions and counts of steps left open. Requires: `plan` is
// given up after an error. Errors: INTERNAL when an optimizer steps a value that is not among the
// contents, or is described without its state.
absl::Status PlanOwner(const std::string& owner, const worker::OwnerContents& contents,
                       SavePlan& plan);

}  // namespace psd
