#pragma once

// The parameter groups of one optimizer: the options of each, which may change between steps, and
// the functional optimizer that the options make. Pure logic.

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

// A group's options at one moment. Every change makes a new version; versions count from 1 in each
// life of the optimizer.
struct GroupOptions {
  OptimizerSpec spec;
  uint64_t version = 0;
};

// The functional optimizer of one group. A running step shares it, so options may change meanwhile.
using FunctionPtr = std::shared_ptr<const FunctionalOptimizer>;
// One function for each group, by the group's number.
using GroupFunctions = absl::InlinedVector<FunctionPtr, 1>;

// Holds the options of all groups, numbered from 0. Thread-compatible.
class OptionGroups {
 public:
  // Adds a group. `dtypes` are the dtypes of its parameters.
  void Add(FunctionPtr function, std::vector<DType> dtypes);

  size_t size() const { return groups_.size(); }
  // Returns the present function of each group.
  GroupFunctions functions() const;
  // Errors: INVALID_ARGUMENT if there is no such group.
  absl::StatusOr<GroupOptions> Get(size_t group) const;

  // Changes options of a group. If the version is 0, makes the next version; otherwise `changes`
  // are all options of that version, which another owner has decided in the same life. A version
  // older than the present one changes nothing. Errors: INVALID_ARGUMENT (no such group, unknown or
  // out-of-range option); FAILED_PRECONDITION if the changed function needs other state slots; the
  // errors of `check`, which is called with the changed function. After an error the options are
  // unchanged.
  absl::StatusOr<GroupOptions> Change(
      size_t group, const std::map<std::string, double>& changes, uint64_t version,
      const OptimizerRegistry& registry,
      absl::FunctionRef<absl::Status(const FunctionalOptimizer&)> check);
  // Returns the function of a group for the given options instead of its own. Changes nothing.
  // Errors: those of Change.
  absl::StatusOr<FunctionPtr> With(
      size_t group, const std::map<std::string, double>& options, const OptimizerRegistry& registry,
      absl::FunctionRef<absl::Status(const FunctionalOptimizer&)> check) const;
  // To be called when the optimizer gets another life. The options stay, and their versions count
  // from 1 again.
  void BeginLife();

 private:
  struct Group {
    FunctionPtr function;
    uint64_t version = 1;       // the version of its options
    std::vector<DType> dtypes;  // f32 if there are no parameters
  };

  std::vector<Group> groups_;
};

// Checks that an optimizer has the options that the schedule sets.
// Errors: INVALID_ARGUMENT naming the optimizer's type and the option.
absl::Status CheckSchedule(const Schedule& schedule, const OptimizerSpec& spec);

// Replaces each function by one with the learning rate of `step`, and with the momentum of `step`
// if the schedule cycles the momentum. Requires: CheckSchedule is OK. Errors: those of
// OptimizerRegistry::Create; some of `functions` may then have been replaced.
absl::Status ApplySchedule(const Schedule& schedule, uint64_t step,
                           const OptimizerRegistry& registry, GroupFunctions& functions);

}  // namespace psd::optim
