#pragma once

// The parameters of one optimizer on one owner, and which of them a step concerns. No effects.

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/ids.h"
#include "core/optim/parameters/stepped_parameter.h"
#include "core/store/parameter.h"

namespace psd::optim {

// The gradients of one step, ready for Apply: sorted by parameter, one for each.
struct StepPlan {
  std::vector<ParameterGradient> gradients;
  std::vector<size_t> indices;  // of each gradient's parameter, in the table: ascending
  absl::InlinedVector<std::shared_ptr<const void>, 1> keepers;  // of borrowed gradients
};

// Parameters sorted by id. Constant once filled, then thread-safe; the parameters themselves are
// confined (see SteppedParameter).
class ParameterTable {
 public:
  // Requires: none of `parameters` has the id of another.
  explicit ParameterTable(std::vector<std::unique_ptr<SteppedParameter>> parameters);

  size_t size() const { return parameters_.size(); }
  SteppedParameter& operator[](size_t index) const { return *parameters_[index]; }
  const std::vector<GlobalId>& ids() const { return ids_; }
  // What SteppedParameter::versions says.
  store::Parameter* versions(size_t index) const { return versions_[index]; }

  // The index of a parameter; none if it is no parameter here. Who asks for ascending ids gives
  // as `first` the index after the last one found, before which it does not look: fastest there.
  std::optional<size_t> Find(GlobalId id, size_t first = 0) const {
    if (first < ids_.size() && ids_[first] == id) return first;
    return Search(id, first);
  }

  // Finds the parameters of `gradients` (any order), checks each gradient and brings it into the
  // form that Apply takes. `keeper` keeps those that are borrowed.
  // Errors: INVALID_ARGUMENT (a gradient for no parameter of these, two for one, or one that does
  // not fit), RESOURCE_EXHAUSTED.
  absl::StatusOr<StepPlan> Plan(std::vector<ParameterGradient> gradients,
                                std::shared_ptr<const void> keeper = nullptr) const;

  // The gradients of both plans added up. Errors: RESOURCE_EXHAUSTED.
  absl::StatusOr<StepPlan> Sum(StepPlan a, StepPlan b) const;

  // Over all gradients of a plan: what clipping by norm and loss scaling ask. Not finite if one of
  // them is not.
  double SumOfSquares(const StepPlan& plan) const;

 private:
  std::optional<size_t> Search(GlobalId id, size_t first) const;

  std::vector<std::unique_ptr<SteppedParameter>> parameters_;
  // Of each of them.
  std::vector<GlobalId> ids_;  // ascending
  std::vector<store::Parameter*> versions_;
};

}  // namespace psd::optim
