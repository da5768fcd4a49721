#pragma once

// The groups of one optimizer: their options, as they change between steps, and the functions that
// they make. Pure.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/optim/functional/functional_optimizer.h"
#include "core/optim/options/optimizer_registry.h"
#include "core/optim/options/schedule.h"
#include "core/tensor/dtype.h"

namespace psd::optim {

// A group's options at one moment. Every change makes a new version; the first one of the
// optimizer's life is 1.
struct GroupOptions {
  OptimizerSpec spec;
  uint64_t version = 0;
};

// One group's function; shared with the steps that run with it while options change.
using FunctionPtr = std::shared_ptr<const FunctionalOptimizer>;
// By group.
using GroupFunctions = absl::InlinedVector<FunctionPtr, 1>;

// Thread-compatible.
class OptionGroups {
 public:
  // A further group, whose parameters have these dtypes.
  void Add(FunctionPtr function, std::vector<DType> dtypes);

  size_t size() const { return groups_.size(); }
  // As they are now. Requires: a group was added.
  GroupFunctions functions() const;
  // Errors: INVALID_ARGUMENT for no group.
  absl::StatusOr<GroupOptions> Get(size_t group) const;

  // Changes options of a group. Version 0: makes the next version; otherwise `changes` are all
  // options of that version, decided elsewhere in the same life. A version that is older than the
  // known one changes nothing.
  // Errors: INVALID_ARGUMENT (no such group, unknown or out-of-range option); FAILED_PRECONDITION
  // when the changed function would need other state slots; what `check` says of the changed
  // function. Nothing has changed then.
  absl::StatusOr<GroupOptions> Change(
      size_t group, const std::map<std::string, double>& changes, uint64_t version,
      const OptimizerRegistry& registry,
      absl::FunctionRef<absl::Status(const FunctionalOptimizer&)> check);
  // The optimizer has another life: the options stay, and their versions count from 1 again.
  void BeginLife();

 private:
  struct Group {
    FunctionPtr function;
    uint64_t version = 1;       // of its options
    std::vector<DType> dtypes;  // f32 if there are no parameters
  };

  std::vector<Group> groups_;
};

// Whether an optimizer has what the schedule sets.
// Errors: INVALID_ARGUMENT naming the optimizer's type and the option.
absl::Status CheckSchedule(const Schedule& schedule, const OptimizerSpec& spec);

// Gives each function the learning rate of `step`, and the momentum if that is cycled, in the place
// of its own. Requires: CheckSchedule is OK.
// Errors: what the registry says; `functions` may then be changed in part.
absl::Status ApplySchedule(const Schedule& schedule, uint64_t step,
                           const OptimizerRegistry& registry, GroupFunctions& functions);

}  // namespace psd::optim
