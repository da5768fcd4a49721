#pragma once

// Plans a save before anything is copied: which values it will hold, and the file that each array
// goes to. Decided from the owners' descriptions of their contents. Pure.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/model_parts.h"
#include "core/base/ids.h"
#include "core/checkpoint/checkpoint_index.h"
#include "core/checkpoint/safetensors_codec.h"
#include "core/checkpoint/tensor_file.h"
#include "core/services/checkpoint/checkpoint_types.h"

namespace psd {

// The files for a parameter's state in one optimizer. Files go by their index in OwnerPlan::files.
struct StatePlan {
  GlobalId optimizer_id;
  size_t optimizer = 0;                        // its index in CheckpointIndex::optimizers
  size_t parameter = 0;                        // its index in that optimizer's parameters
  std::vector<checkpoint::TensorSpec> arrays;  // named by slot
  std::vector<size_t> files;                   // for each array
  size_t step_file = 0;                        // for the count of steps
};

struct ValuePlan {
  size_t value = 0;  // its index in CheckpointIndex::values
  GlobalId id;
  std::vector<StatePlan> states;
  uint64_t bytes = 0;  // state included
  int64_t rows = 0;    // for a table, which may be copied in parts; 0 for all other values
};

struct OwnerPlan {
  std::string owner;
  uint64_t steps_accepted = 0;  // by its optimizers, when it described its contents
  bool writes_files = false;    // whether it is allowed to write its own files
  std::vector<ValuePlan> values;
  std::vector<checkpoint::FileSpec> files;  // the first holds the values
};

struct SavePlan {
  checkpoint::CheckpointIndex index;
  std::vector<OwnerPlan> owners;
  uint64_t bytes = 0;
};

// Adds the contents of `owner` to `plan`. Versions and counts of steps stay open until the values
// are copied. After an error `plan` must not be used. Errors: INTERNAL if an optimizer steps a
// value that is not among the contents, or its state is not described.
absl::Status PlanOwner(const std::string& owner, const services::OwnerContents& contents,
                       SavePlan& plan);

// Lists in the plan the optimizers with loss scaling that are saved without their lead, the only
// owner that knows the present scale. To be called when all owners have been planned. `contents`
// has every owner of the plan.
void NameMissingLeads(const ContentsByOwner& contents, SavePlan& plan);

}  // namespace psd
