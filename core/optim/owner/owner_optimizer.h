#pragma once

// The part of an optimizer on one owner: the parameters there, their state, and the record of the
// steps that were applied.

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/base/completion_threads.h"
#include "core/base/executor.h"
#include "core/base/fair_queue.h"
#include "core/base/ids.h"
#include "core/base/memory_budget.h"
#include "core/base/mutex.h"
#include "core/base/parallel_for.h"
#include "core/base/stream.h"
#include "core/optim/functional/functional_optimizer.h"
#include "core/optim/options/loss_scale.h"
#include "core/optim/options/optimizer_config.h"
#include "core/optim/options/optimizer_registry.h"
#include "core/optim/options/option_groups.h"
#include "core/optim/owner/optimizer_change.h"
#include "core/optim/owner/optimizer_life.h"
#include "core/optim/owner/parameter_groups.h"
#include "core/optim/owner/step_book.h"
#include "core/optim/parameters/parameter_table.h"
#include "core/optim/parameters/stepped_parameter.h"
#include "core/optim/steps/round_measure.h"
#include "core/optim/steps/staleness_record.h"
#include "core/optim/steps/step_gate.h"
#include "core/optim/steps/step_request.h"
#include "core/store/changing.h"
#include "core/store/parameter.h"
#include "core/store/store.h"
#include "core/store/value.h"
#include "core/store/write_claims.h"

namespace psd::optim {

struct StepBatch;

// A step of at most this many elements takes less time than handing it to another thread.
inline constexpr int64_t kInlineElements = 512 * 1024;

// The staleness of the gradients for one parameter, in versions.
struct ParameterStaleness {
  std::string parameter;  // its name, or its id
  uint64_t last = 0;      // in the latest step whose version is known
  uint64_t most = 0;
  double mean = 0;
  uint64_t steps = 0;  // the number of steps whose version is known
};

// The identity of an optimizer as a value of the store.
struct HostedAs {
  GlobalId id;         // if it is no id, the optimizer draws one
  bool named = false;  // whether the value has a name
};

// Applies steps to its parameters. Steps of this optimizer, and of others that share a parameter
// with it, are applied one after another. If all their parameters are on one device, a step is
// added to the work of the device while earlier ones are still under way there, up to
// store::kMaxTogether of them; they end, and are answered, in their order. As a value in the store
// its type name is "optimizer/" followed by the optimizer's type. Thread-safe.
class OwnerOptimizer : public store::Object, public std::enable_shared_from_this<OwnerOptimizer> {
 public:
  // Reserves spares and state (charged to the store's budget) for all parameters of `groups`, of
  // which there may be none, so that no step fails for lack of memory. Large steps are divided
  // among `helpers`. Steps and measurements of more than kInlineElements, and all steps of
  // parameters on devices, run on `large_steps`, because the thread that ends their wait may belong
  // to the carrier or the timer, and must neither compute for long nor wait for a device. If
  // `large_steps` is null or full, they run on that thread all the same. Steps whose parameters
  // are all on one device do not wait for it: `completions` ends them; if it is null, the thread of
  // the step waits. Every change goes through `changes`. `registry`, `store`, `changes` and the
  // executors must outlive the last step. Errors: INVALID_ARGUMENT (no group; groups of several
  // types; an option or setting that is unknown or out of range; a value that is not a parameter or
  // does not require grad; a repeated parameter; a dtype that the optimizer cannot step), NOT_FOUND
  // (an unknown type), UNIMPLEMENTED (a parameter on a device that lacks a kernel),
  // RESOURCE_EXHAUSTED; nothing is reserved then.
  static absl::StatusOr<std::shared_ptr<OwnerOptimizer>> Create(
      std::vector<ParameterGroup> groups, const OptimizerSettings& settings,
      const OptimizerRegistry& registry, store::Store& store, ChangeApplier& changes,
      const Helpers& helpers = {}, Executor* large_steps = nullptr, const HostedAs& hosted = {},
      CompletionThreads* completions = nullptr);

  std::string TypeName() const override;
  // Its parameters on this owner. The set never changes.
  const ParameterTable& table() const { return table_; }
  // Whether any of the parameters is on a device, so that every step waits for one.
  bool has_devices() const { return has_devices_; }
  const OptimizerSettings& settings() const { return settings_; }
  size_t num_groups() const PSD_EXCLUDES(mutex_);
  // The options with which each group was created, including defaults.
  const std::vector<OptimizerSpec>& created() const { return created_; }
  // Returns the present options of a group. Errors: INVALID_ARGUMENT if there is no such group.
  absl::StatusOr<GroupOptions> options(size_t group) const PSD_EXCLUDES(mutex_);

  // Applies one step when it is its turn: writes the spares, publishes all of them at once, then
  // calls `done`. Parameters without a gradient are untouched, and so are their state and step
  // count. A small step runs on this thread, on the thread of the step before it, or on the thread
  // that ends the wait that its mode asks for; for large steps see Create. A step that was applied
  // before is answered `repeated`. Errors (through `done`): CANCELLED, those of Check,
  // FAILED_PRECONDITION (a step that its trainer has given up, or a step that is so old that it is
  // unknown whether it was applied), INVALID_ARGUMENT (several seats without rounds), ABORTED (the
  // session has ended), RESOURCE_EXHAUSTED (no memory to add up the gradients of a round, or to
  // copy those on devices to the host for the journal), and those of StepGate and of the devices.
  void Step(StepRequest request);

  // Computes the sum of the squares of a step's gradients, before the step's terms (scale, limit)
  // are applied, and passes it to `done`. In synchronous modes the request needs a place in a round
  // that the lead has named. The gradients of all members of the round are then reduced, so this
  // waits for the other members as a step does. Until the next round is measured, a request of the
  // same turn gets the same answer. The terms and callbacks of `request` are ignored. Errors
  // (through `done`): as Step.
  void Measure(StepRequest request, absl::AnyInvocable<void(absl::StatusOr<double>)> done);

  // Whether steps wait for steps of other trainers. See StepGate.
  bool waits() const { return gate_ != nullptr; }
  // Returns a new number, for StepRequest::ticket.
  uint64_t NewTicket() { return last_ticket_.fetch_add(1, std::memory_order_relaxed) + 1; }
  // Gives up the request with this ticket. See StepGate. Does nothing if steps do not wait.
  void Withdraw(uint64_t ticket);
  // See StepGate. Does nothing if steps do not wait.
  void GiveUp(uint64_t incarnation, uint64_t before);
  // Only the lead is asked for turns. See docs/decisions/0016-one-lead.md.
  //   - In synchronous rounds the turn comes when all members have asked. The answer has the lead's
  //     word on the round, which is sent to all owners with the step.
  //   - If steps wait one by one, the step is applied on all owners `in_turn` when its turn has
  //     come, and then its turn is ended here.
  //   - If no step waits, the turn comes at once.
  // The request's step_id is the id of the turn, and its ended_before is about turns. The answer
  // has the number of accepted steps. Errors (through `done`): those of StepGate; CANCELLED if the
  // turn was ended before the request for it arrived.
  void TakeTurn(StepRequest request);
  // Ends a turn of the trainer with this session: at the lead when its step has ended, and in
  // rounds on every owner where the step was not applied. A step that waits in the turn's round is
  // answered CANCELLED, and other steps no longer wait for it.
  void EndTurn(GlobalId session, GlobalId turn, bool applied) PSD_EXCLUDES(mutex_);
  // To be called when a trainer with this session has created or joined the optimizer. The members
  // of named rounds wait only for steps of such trainers, and the seats of rounds that were taken
  // stay so until the last of them leaves (RoundLedger). If the session is a new one of the
  // trainer, a former one leaves now, and nobody waits any more for the trainer's turns with
  // numbers below `turns_ended_before`. A session that has ended joins nothing.
  void Join(GlobalId session, uint64_t turns_ended_before) PSD_EXCLUDES(mutex_);
  // See StepGate. Both do nothing if steps do not wait.
  void Leave(GlobalId session, uint64_t before);
  void GiveSeats(GlobalId session, uint64_t before);
  // To be called when the session has ended for ever. It leaves, and none of its steps is applied
  // any more.
  void EndSession(GlobalId session) PSD_EXCLUDES(mutex_);

  // See StepGate::Close. Does nothing if steps do not wait.
  void CloseGate(const absl::Status& why);

  // Checks whether a step could be applied now. Errors: FAILED_PRECONDITION (a gradient is older
  // than the mode allows, naming both versions and the bound, or its version is unknown and the
  // mode does not allow that); INVALID_ARGUMENT (a gradient is sparse, and the options do not allow
  // sparse gradients).
  absl::Status Check(const StepPlan& plan) const PSD_EXCLUDES(mutex_);

  // Returns the functions for a step: those of the given `options` of all groups, or those of the
  // present options if `options` is empty. For changes that are applied again. Errors: those of
  // OptionGroups::Change; INVALID_ARGUMENT for another number of groups.
  absl::StatusOr<GroupFunctions> FunctionsWith(
      absl::Span<const std::map<std::string, double>> options) const PSD_EXCLUDES(mutex_);

  // Changes options of a group from the next step on, then calls `done` with the group's new
  // options. If the version is 0, this owner decides and makes the next version; otherwise another
  // owner has decided it (see OptionGroups::Change). Errors: INVALID_ARGUMENT (no such group,
  // unknown or out-of-range option); FAILED_PRECONDITION if the changed optimizer would need other
  // state than was reserved, or does not have the life `life`.
  void SetOptions(size_t group, std::map<std::string, double> changes, uint64_t version,
                  GlobalId life, absl::AnyInvocable<void(absl::StatusOr<GroupOptions>)> done);

  // The life that this part belongs to. A new part's life has no id and no owners until SetLife.
  OptimizerLife life() const PSD_EXCLUDES(mutex_);
  // From now on only steps of this life are applied, if any; waiting steps of other lives are
  // refused. The life's memory is charged to the store's budget. Errors: FAILED_PRECONDITION if the
  // part's life has ended; RESOURCE_EXHAUSTED.
  absl::Status SetLife(OptimizerLife life) PSD_EXCLUDES(deciding_, mutex_);
  // As SetLife, if the part is in the life `judged` after this many steps. Changes nothing if the
  // part is already in `life`. Requires: the claim of claim_id(). Errors: those of SetLife;
  // FAILED_PRECONDITION if the part is in neither life.
  absl::Status JoinLife(OptimizerLife life, GlobalId judged, uint64_t steps)
      PSD_EXCLUDES(deciding_, mutex_);
  // Ends the load that has given the life `load` to the part and replaced its state: sets the saved
  // counters, and begins `life`. If the part is already in `life`, the counters stay as they are.
  // Without an id, `load` stands for any load. Requires: the claims of claim_id() and of all
  // parameters. Errors: those of SetLife and CheckLoad.
  absl::Status FinishLoad(OptimizerLife life, GlobalId load, const LoadedCounters& counters)
      PSD_EXCLUDES(deciding_, mutex_);
  // As FinishLoad, for a load by the only trainer that steps the part: the part stays in its life.
  // Requires: as FinishLoad. Errors: FAILED_PRECONDITION if the part's life has ended or another
  // load of it has begun; those of the devices.
  absl::Status FinishOwnLoad(const LoadedCounters& counters) PSD_EXCLUDES(deciding_, mutex_);
  // Recomputes what is derived from the arrays of state, after a load has written them. FinishLoad
  // does this too. Requires: the claims of all parameters. Errors: those of the devices.
  absl::Status StateReplaced();
  // The id under which the optimizer is hosted. Every step claims it, so no step is under way while
  // somebody else holds the claim alone.
  GlobalId claim_id() const { return claim_id_; }
  // Whether its changes are changes of named contents: it has a name, or a parameter that was
  // created with one.
  bool described() const { return described_; }
  // Ends the part's life: no step is applied any more, and waiting steps are refused.
  void EndLife(store::Changing) PSD_EXCLUDES(deciding_, mutex_);

  // To be called only by the implementation of ChangeApplier, whose functions say what they
  // require.
  absl::Status Apply(store::Changing changing, StepChange& change) PSD_EXCLUDES(mutex_);
  absl::Status Complete(store::Changing changing, StepChange& change, absl::Status passed)
      PSD_EXCLUDES(mutex_);
  absl::Status Apply(store::Changing, const OptionsChange& change) PSD_EXCLUDES(mutex_);
  absl::Status Apply(store::Changing changing, const LifeChange& change) PSD_EXCLUDES(mutex_);

  struct Stats {
    uint64_t steps = 0;
    uint64_t under_way = 0;  // further steps, on which a device still works
    uint64_t skipped = 0;    // steps that were skipped because of an overflow
    uint64_t max_staleness = 0;
    double mean_staleness = 0;
    size_t state_bytes = 0;
    double loss_scale = 0;    // 0: losses are not scaled
    uint64_t good_steps = 0;  // good steps in a row with this loss scale
    size_t members = 0;       // trainers that others wait for
    size_t waiting = 0;       // steps that wait for other trainers
  };
  Stats stats() const PSD_EXCLUDES(mutex_);
  // Returns the staleness of at most `limit` parameters for which it is known, the most stale
  // first.
  std::vector<ParameterStaleness> staleness(size_t limit) const PSD_EXCLUDES(mutex_);

 private:
  struct RunState;

  OwnerOptimizer(OptionGroups groups, ParameterTable table, const OptimizerSettings& settings,
                 const OptimizerRegistry& registry, store::Store& store, ChangeApplier& changes,
                 const Helpers& helpers, Executor* large_steps, const HostedAs& hosted,
                 CompletionThreads* completions);
  // Returns whether steps of an optimizer on several owners ask the lead for their turn.
  bool TakesTurns() const {
    return settings_.mode.kind == UpdateMode::Kind::kBoundedStaleness &&
           settings_.mode.when_stale == UpdateMode::WhenStale::kWait;
  }
  absl::StatusOr<MemoryCharge> ChargeLife(const OptimizerLife& life);
  // Answers the steps that must not wait any longer.
  void RecheckGate();
  StepResult RepeatedResult() const PSD_REQUIRES(mutex_);
  // Returns the answer to a step that must not wait. Called with the gate's lock held.
  std::optional<absl::StatusOr<StepResult>> FindKnown(const StepRequest& request)
      PSD_EXCLUDES(mutex_);
  // The gate's view of turns.
  StepGate::Turns Turns();
  // Runs `run` on this thread if it is `light`, otherwise on `large_steps_`.
  void RunSized(bool light, FlowId flow, Task run);
  // Runs steps whose turn has come.
  void Run(std::vector<StepRequest> steps);
  void RunMeasure(std::vector<StepRequest> steps);
  // Returns the stream of StepBatch::stream, or null.
  const Stream* StreamOf(const StepBatch& batch) const;
  // Performs the batch when it gets its claim.
  void Start(std::unique_ptr<StepBatch> batch);

  // The following functions run while the write claim is held. Complete and Finish may be called
  // after it was handed on.

  void Perform(std::unique_ptr<StepBatch> batch, store::WriteClaims::ClaimId claim);
  // Applies those steps of the batch that may be applied, and sets all results. If a device is
  // still at work then, they are set by Complete.
  void Apply(StepBatch& batch) PSD_EXCLUDES(mutex_);
  void Complete(StepBatch& batch, absl::Status passed) PSD_EXCLUDES(mutex_);
  // Whether a device still works on an earlier attempt of one of the steps.
  bool IsRepeatedUnderWay(const StepBatch& batch) const PSD_EXCLUDES(mutex_);
  static void AnnounceUnderWay(StepBatch& batch);
  // Releases the claim and answers.
  void Finish(StepBatch& batch, store::WriteClaims::ClaimId claim);
  // Reads the options and the step count, and answers the steps that FindKnown knows.
  RunState Begin(StepBatch& batch) PSD_EXCLUDES(mutex_);
  // Steps all parameters of the plan. Returns when this is done, or when it has been added to
  // a device, with its event in change.under_way. Errors: those of the devices.
  absl::Status RunKernels(store::Changing changing, StepChange& change);
  // Steps the parameters on devices, or the parameters on the host. Returns the events of devices.
  absl::StatusOr<std::vector<DeviceEvent>> RunKernelsWhere(store::Changing changing,
                                                           StepChange& change, bool on_devices);
  // Returns the device that has all parameters of the plan. Null: it is the host, or there are
  // several, or the plan has no parameter.
  Device* OnlyDevice(const StepPlan& plan) const;
  void Record(StepChange& change) PSD_EXCLUDES(mutex_);
  // Note that a change is under way from now on, or no longer.
  void BeginUnderWay(const StepChange& change) PSD_EXCLUDES(mutex_);
  void EndUnderWay(const StepChange& change) PSD_REQUIRES(mutex_);
  // Counts a skipped round as one skipped step, as an applied round counts as one accepted step.
  void RecordOverflow(StepChange& change) PSD_EXCLUDES(mutex_);
  // Checks that `function` can step all parameters of `group`. Errors: those of
  // SteppedParameter::CheckOptions.
  absl::Status CheckFunction(size_t group, const FunctionalOptimizer& function) const;
  absl::StatusOr<GroupOptions> ChangeOptions(size_t group,
                                             const std::map<std::string, double>& changes,
                                             uint64_t version, GlobalId life)
      PSD_EXCLUDES(deciding_, mutex_);

  const OptimizerRegistry& registry_;
  store::Store& store_;
  ChangeApplier& changes_;
  const Helpers helpers_;
  Executor* const large_steps_;           // may be null
  CompletionThreads* const completions_;  // may be null
  // The optimizer's own id. Every step claims it, so steps of the optimizer run one after another.
  const GlobalId claim_id_;
  const OptimizerSettings settings_;
  const std::vector<OptimizerSpec> created_;  // the spec that each group was created with
  const std::string type_;
  const ParameterTable table_;
  // Whether a parameter is on a device; does not change after construction.
  bool has_devices_ = false;
  size_t state_bytes_ = 0;
  bool described_ = false;

  // Held while a change of the life or of options is decided and applied, so that the result of the
  // checks stays true and a journal gets such changes in their order.
  Mutex deciding_;       // before: OwnerOptimizer::mutex_, Journal
  mutable Mutex mutex_;  // leaf
  OptionGroups groups_ PSD_GUARDED_BY(mutex_);
  StepBook book_ PSD_GUARDED_BY(mutex_);
  MemoryCharge life_memory_ PSD_GUARDED_BY(mutex_);
  uint64_t steps_ PSD_GUARDED_BY(mutex_) = 0;
  uint64_t skipped_ PSD_GUARDED_BY(mutex_) = 0;
  // The changes that were applied and are not complete, and the ids of the steps that they end.
  uint64_t changes_under_way_ PSD_GUARDED_BY(mutex_) = 0;
  std::set<GlobalId> steps_under_way_ PSD_GUARDED_BY(mutex_);
  LossScale loss_scale_ PSD_GUARDED_BY(mutex_);
  StalenessRecord staleness_ PSD_GUARDED_BY(mutex_);

  std::atomic<uint64_t> last_ticket_{0};

  RoundMeasure measure_;  // used in synchronous rounds only
  // Null if steps never wait. The gate locks mutex_ while it holds its own lock, never the reverse.
  const std::unique_ptr<StepGate> gate_;
};

}  // namespace psd::optim
