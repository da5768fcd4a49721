#pragma once

// The part of one optimizer that lives on one owner: its parameters there, their state, and the
// steps that it has applied.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "core/base/executor.h"
#include "core/base/ids.h"
#include "core/base/parallel_for.h"
#include "core/optim/functional/functional_optimizer.h"
#include "core/optim/options/optimizer_config.h"
#include "core/optim/options/optimizer_registry.h"
#include "core/optim/options/option_groups.h"
#include "core/optim/owner/optimizer_life.h"
#include "core/optim/owner/parameter_groups.h"
#include "core/optim/parameters/parameter_table.h"
#include "core/optim/parameters/stepped_parameter.h"
#include "core/optim/steps/step_request.h"
#include "core/store/store.h"
#include "core/store/value.h"

namespace psd::optim {

// Up to so many elements a step is cheaper than handing it to another thread.
inline constexpr int64_t kInlineElements = 512 * 1024;

// How far behind the gradients for one parameter were.
struct ParameterStaleness {
  std::string parameter;  // its name, or its id
  uint64_t last = 0;      // versions, at the last step that said what it had read
  uint64_t most = 0;
  double mean = 0;
  uint64_t steps = 0;  // that said so
};

// Thread-safe. Steps of this optimizer, and of others that share a parameter, are serial. As a
// value in the store its type is "optimizer/" and the optimizer's type.
class OwnerOptimizer : public store::Object {
 public:
  // Reserves spares and state (charged to the store's budget) for all parameters of `groups`,
  // which may be none, so that no step fails for memory. Large steps are shared out to `helpers`.
  // Steps and measures of more than kInlineElements run on `large_steps`, whoever ends their wait:
  // that may be a thread of the carrier or of the timer, which must not compute for long. They run
  // on that thread after all if `large_steps` is null or full.
  // `registry`, `store` and the executors outlive the last step.
  // Errors: INVALID_ARGUMENT (no group; groups of several types; an option or setting that is
  // unknown or out of range; a value that is no parameter or does not require grad; a repeated
  // parameter; a dtype that the optimizer cannot step), NOT_FOUND (an unknown type),
  // RESOURCE_EXHAUSTED; nothing is kept then.
  static absl::StatusOr<std::shared_ptr<OwnerOptimizer>> Create(std::vector<ParameterGroup> groups,
                                                                const OptimizerSettings& settings,
                                                                const OptimizerRegistry& registry,
                                                                store::Store& store,
                                                                const Helpers& helpers = {},
                                                                Executor* large_steps = nullptr);

  // Its parameters here: which there are never changes.
  virtual const ParameterTable& table() const = 0;
  virtual const OptimizerSettings& settings() const = 0;
  virtual size_t num_groups() const = 0;
  // What the groups were created with, defaults included.
  virtual const std::vector<OptimizerSpec>& created() const = 0;
  // Errors: INVALID_ARGUMENT for no group.
  virtual absl::StatusOr<GroupOptions> options(size_t group) const = 0;

  // Applies one step when it is its turn: writes the spares, publishes all of them as one, then
  // calls `done`. Parameters without a gradient are untouched, and so are their state and step
  // count. A small step runs on this thread, or on that of the last step before it, or on the
  // thread that ends the wait that its mode asks for; see Create for large ones.
  // A step that was applied before is answered `repeated`.
  // Errors (through `done`): CANCELLED, what Check says, FAILED_PRECONDITION (a step that its
  // trainer has given up, or that is too old to tell whether it was applied), ABORTED (of a session
  // that has ended), RESOURCE_EXHAUSTED (no memory to add up
  // the gradients of a round), and StepGate's.
  virtual void Step(StepRequest request) = 0;

  // The sum of squares of a step's gradients as they will be applied, but for its terms: in a
  // synchronous round, of all trainers' gradients reduced, for which it waits as a step does. Asked
  // for again with the same step id it says the same, until the next round is measured.
  // Of `request`, the terms and callbacks are not looked at.
  virtual void Measure(StepRequest request,
                       absl::AnyInvocable<void(absl::StatusOr<double>)> done) = 0;

  // Whether steps wait for those of other trainers: see StepGate.
  virtual bool waits() const = 0;
  // Another number each time, for StepRequest::ticket.
  virtual uint64_t NewTicket() = 0;
  // See StepGate. Does nothing where no step waits.
  virtual void Withdraw(uint64_t ticket) = 0;
  // For an optimizer on several owners in which steps wait one by one: only the owner that leads is
  // asked for a step's turn. The step is then applied on all owners `in_turn`, and its turn is
  // ended here. See docs/decisions/0016-one-lead.md and StepGate. A turn comes at once where no
  // step waits. The request's step_id is the turn's, and its ended_before is about turns.
  // Errors (through `done`): CANCELLED: the turn was ended before the question for it arrived.
  virtual void TakeTurn(StepRequest request) = 0;
  // `session` is that of the trainer.
  virtual void EndTurn(GlobalId session, GlobalId turn, bool applied) = 0;
  // See StepGate. `ended`: the session never comes back, and nothing of it is applied any more.
  virtual void Leave(GlobalId session, bool ended) = 0;

  // What a step would be refused for if it were applied now. Errors: FAILED_PRECONDITION (a
  // gradient older than the mode allows, named with both versions and the bound, or of an unknown
  // version where the mode does not allow that); INVALID_ARGUMENT (a sparse gradient, and options
  // that do not go with one).
  virtual absl::Status Check(const StepPlan& plan) const = 0;

  // Changes options of a group from the next step on, then calls `done` with the group's new
  // options. Version 0: this owner decides and makes the next version; otherwise another one has
  // decided, see OptionGroups::Change.
  // Errors: INVALID_ARGUMENT (no such group, unknown or out-of-range option); FAILED_PRECONDITION
  // when the changed optimizer would need other state than was reserved, or is not of `life`.
  virtual void SetOptions(size_t group, std::map<std::string, double> changes, uint64_t version,
                          GlobalId life,
                          absl::AnyInvocable<void(absl::StatusOr<GroupOptions>)> done) = 0;

  // After loading: as if so many steps had been accepted here, and the loss scale moved (to
  // `loss_scale`, if losses are scaled at all), with which so many steps were good.
  virtual void Restore(uint64_t steps, double loss_scale, uint64_t good_steps) = 0;

  // The life that this part belongs to; that of a new part has no id and no owners.
  virtual OptimizerLife life() const = 0;
  // From now on only steps of this life are applied, if any; those of others that wait are refused.
  // Errors: FAILED_PRECONDITION: the part's life has ended.
  virtual absl::Status SetLife(OptimizerLife life) = 0;
  // As SetLife, if the part is in the life `judged` after so many steps; nothing changes if it is
  // in `life` already. Requires: the claim of claim_id(). Errors: FAILED_PRECONDITION when it is
  // neither.
  virtual absl::Status JoinLife(OptimizerLife life, GlobalId judged, uint64_t steps) = 0;
  // Every step claims it: who has the claim knows that no step is under way.
  virtual GlobalId claim_id() const = 0;
  // No step is applied any more, and those that wait are refused.
  virtual void EndLife() = 0;

  struct Stats {
    uint64_t steps = 0;
    uint64_t skipped = 0;  // because of overflow
    uint64_t max_staleness = 0;
    double mean_staleness = 0;
    size_t state_bytes = 0;
    double loss_scale = 0;    // 0: none
    uint64_t good_steps = 0;  // in a row, with this loss scale
    size_t members = 0;       // trainers that others wait for
    size_t waiting = 0;       // steps that wait for others
  };
  virtual Stats stats() const = 0;
  // Of the parameters whose staleness is known, the most stale first, at most `limit`.
  virtual std::vector<ParameterStaleness> staleness(size_t limit) const = 0;
};

}  // namespace psd::optim
