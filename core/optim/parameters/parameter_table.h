#pragma once

// The parameters that one optimizer has on one owner, and the plan of a step: which parameters get
// which gradients.

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

// The gradients of one step, prepared for SteppedParameter::BeginStep: one for each parameter,
// sorted by parameter.
struct StepPlan {
  std::vector<ParameterGradient> gradients;
  std::vector<size_t> indices;  // each gradient's parameter, as its index in the table; ascending
  absl::InlinedVector<std::shared_ptr<const void>, 1> keepers;  // keep borrowed gradients alive
};

// Copies the gradients that are on devices to the host, and waits for that. Errors:
// RESOURCE_EXHAUSTED; those of the devices.
absl::Status BringToHost(StepPlan& plan);

// Returns the sum of the squares of the elements of each gradient, or of all of them, which
// clipping by norm and loss scaling need. A result is not finite if an element is not finite. Waits
// for the devices that have gradients. Requires: no sum among them is still to be rounded. Errors:
// those of devices; RESOURCE_EXHAUSTED.
absl::StatusOr<std::vector<double>> SumsOfSquares(const StepPlan& plan);
absl::StatusOr<double> SumOfSquares(const StepPlan& plan);

// Holds the parameters, sorted by id. The table never changes and is thread-safe; access to the
// parameters themselves is restricted (see SteppedParameter).
class ParameterTable {
 public:
  // Requires: all of `parameters` have different ids.
  explicit ParameterTable(std::vector<std::unique_ptr<SteppedParameter>> parameters);

  size_t size() const { return parameters_.size(); }
  SteppedParameter& operator[](size_t index) const { return *parameters_[index]; }
  const std::vector<GlobalId>& ids() const { return ids_; }
  // The result of the parameter's SteppedParameter::versions().
  store::Parameter* versions(size_t index) const { return versions_[index]; }

  // Returns the index of parameter `id`, or nothing if the table does not have it at `first` or
  // later. A caller that looks up ascending ids should pass the index after the last result as
  // `first`: a parameter at exactly that index is found at once.
  std::optional<size_t> Find(GlobalId id, size_t first = 0) const {
    if (first < ids_.size() && ids_[first] == id) return first;
    return Search(id, first);
  }

  // Finds the parameters of `gradients` (any order), checks each gradient and prepares it for
  // BeginStep. `keeper` keeps borrowed gradients alive for as long as the plan lives.
  // Errors: INVALID_ARGUMENT (a gradient for a parameter that the table does not have, two
  // gradients for one parameter, or a gradient that does not fit), RESOURCE_EXHAUSTED.
  absl::StatusOr<StepPlan> Plan(std::vector<ParameterGradient> gradients,
                                std::shared_ptr<const void> keeper = nullptr) const;

  // Returns a plan whose gradients are the sums of those of `a` and `b`. A gradient that only one
  // of them has is taken as it is. Errors: RESOURCE_EXHAUSTED; those of devices.
  absl::StatusOr<StepPlan> Sum(StepPlan a, StepPlan b) const;
  // Brings sums into the form that SumsOfSquares and BeginStep take; see SteppedParameter::Round.
  // Must be called when all plans have been added. Errors: RESOURCE_EXHAUSTED; those of devices.
  absl::Status Round(StepPlan& sum) const;

 private:
  std::optional<size_t> Search(GlobalId id, size_t first) const;

  std::vector<std::unique_ptr<SteppedParameter>> parameters_;
  // Both have one element for each of parameters_.
  std::vector<GlobalId> ids_;  // ascending
  std::vector<store::Parameter*> versions_;
};

}  // namespace psd::optim
