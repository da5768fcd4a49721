#pragma once

// An optimizer over parameters that this worker hosts, and its state. Internal to client/zero/.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/worker.h"
#include "client/zero/optimizer_snapshot.h"
#include "core/base/ids.h"
#include "core/change/change.h"
#include "core/optim/options/optimizer_config.h"
#include "core/optim/options/option_groups.h"
#include "core/optim/owner/owner_optimizer.h"
#include "core/optim/owner/parameter_groups.h"
#include "core/optim/parameters/parameter_table.h"
#include "core/optim/steps/step_request.h"
#include "core/rref/rref.h"
#include "core/runtime/runtime.h"
#include "core/store/store.h"

namespace psd::zero {

// The number of accepted steps and the state of the loss scale, as in OptimizerSnapshot.
struct Counters {
  uint64_t steps = 0;
  double loss_scale = 0;
  uint64_t good_steps = 0;
};

// The parameters of each group of an optimizer, wherever they are stepped.
using EntryGroups = std::vector<std::vector<store::EntryPtr>>;

// Thread-compatible. The worker must outlive it.
class LocalOptimizer {
 public:
  // Makes a private optimizer. Any of the groups may be empty.
  // Errors: those of OwnerOptimizer::Create.
  static absl::StatusOr<std::unique_ptr<LocalOptimizer>> Create(
      Worker& worker, std::vector<optim::ParameterGroup> groups,
      const optim::OptimizerSettings& settings);
  // Makes a LocalOptimizer of an optimizer that this worker hosts.
  // Errors: FAILED_PRECONDITION if another worker hosts it.
  static absl::StatusOr<std::unique_ptr<LocalOptimizer>> Of(Worker& worker, const RRef& optimizer);

  // Plans a step with the gradients that a context has collected on this worker, without those for
  // the parameters `frozen`. The plan keeps the gradients as they are now.
  // Errors: NOT_FOUND if the context was released; those of ParameterTable::Plan and
  // OwnerOptimizer::Check.
  absl::StatusOr<optim::StepPlan> Plan(GlobalId context,
                                       const absl::flat_hash_set<GlobalId>& frozen);
  // Returns the sum of the squares of each gradient of a plan, with the id of its parameter.
  // Errors: those of optim::SumsOfSquares.
  absl::StatusOr<std::vector<std::pair<GlobalId, double>>> SumsOfSquares(
      optim::StepPlan plan) const;
  // Applies a plan. Errors: those of OwnerOptimizer::Step.
  absl::StatusOr<optim::StepResult> Step(optim::StepPlan plan, const optim::StepTerms& terms);

  // Returns the options of a group. Errors: INVALID_ARGUMENT if there is no such group.
  absl::StatusOr<OptimizerSpec> Options(size_t group) const;
  // Returns the functions that all groups would have with these options. Changes nothing.
  // Errors: those of OwnerOptimizer::SetOptions, for all of `parameters`, also for those that this
  // optimizer does not step.
  absl::StatusOr<optim::GroupFunctions> FunctionsWith(
      absl::Span<const std::map<std::string, double>> options, const EntryGroups& parameters) const;
  // Changes options of a group. Errors: those of OwnerOptimizer::SetOptions.
  absl::Status SetOptions(size_t group, const std::map<std::string, double>& changes);

  Counters counters() const;
  size_t state_bytes() const { return optimizer_->stats().state_bytes; }
  size_t num_groups() const { return optimizer_->num_groups(); }
  const std::string& type() const { return optimizer_->created()[0].type; }

  // Copies the state of parameters as it is between two steps. The state of a parameter that this
  // optimizer does not step is empty. Errors: RESOURCE_EXHAUSTED.
  absl::StatusOr<std::vector<ParameterSnapshot>> Read(const std::vector<store::EntryPtr>& entries);
  // Prepares to replace the state of `entries` by `saved`, which has one element for each entry.
  // Entries that this optimizer does not step are left out. Changes nothing.
  // Requires: each of `saved` has the arrays that this optimizer keeps for its entry.
  // Errors: RESOURCE_EXHAUSTED.
  absl::StatusOr<std::vector<change::LoadValue>> PrepareWrite(
      const std::vector<store::EntryPtr>& entries,
      const std::vector<const ParameterSnapshot*>& saved) const;
  // Replaces state as prepared, and the counters. The parameters keep their versions.
  // Errors: FAILED_PRECONDITION if the optimizer was dropped, and nothing has changed then; those
  // of the devices.
  absl::Status Write(const std::vector<change::LoadValue>& loads, const Counters& counters);

 private:
  LocalOptimizer(Worker& worker, RRef reference, std::shared_ptr<optim::OwnerOptimizer> optimizer);
  optim::SteppedParameter* Find(const store::Entry& entry) const;

  worker::Runtime& runtime_;
  const RRef reference_;                                    // keeps the optimizer's value
  const std::shared_ptr<optim::OwnerOptimizer> optimizer_;  // shared with the store
};

}  // namespace psd::zero
