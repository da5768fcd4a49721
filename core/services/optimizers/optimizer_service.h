#pragma once

// Optimizers on owners: creates them, prepares and applies steps, and changes options.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/executor.h"
#include "core/base/future.h"
#include "core/base/ids.h"
#include "core/base/mutex.h"
#include "core/base/timer.h"
#include "core/change/changes.h"
#include "core/dist_autograd/dist_autograd.h"
#include "core/dist_autograd/exchange.h"
#include "core/optim/options/optimizer_config.h"
#include "core/optim/options/optimizer_registry.h"
#include "core/optim/owner/optimizer_life.h"
#include "core/optim/owner/owner_optimizer.h"
#include "core/optim/steps/step_request.h"
#include "core/rpc/declared_method.h"
#include "core/rpc/rpc_agent.h"
#include "core/rref/creation_gate.h"
#include "core/rref/rref.h"
#include "core/rref/rref_context.h"
#include "core/services/optimizers/optimizer_codec.h"
#include "core/store/store.h"
#include "core/store/value.h"
#include "proto/psd/v1/worker.pb.h"

namespace psd::services {

// The parameters of one group of a new optimizer that are on one owner.
struct GroupRequest {
  optim::OptimizerSpec spec;
  std::vector<rref::RRef> parameters;  // may be empty
};

// Says in which life of a named optimizer (core/optim/owner/optimizer_life.h) a part of it is
// created.
struct PartTerms {
  // The life of a new part. An existing part must have this life. Without an id, a new part begins
  // its own life, and an existing part may have any.
  optim::OptimizerLife life;
  // If the existing part has this life, it is dropped first, and a new part is made.
  GlobalId replaced;
  // If true, the part, new or not, is loading from now on, in a life that has the id of `life`, or
  // a new id. Requires: `life` has no owners.
  bool unfinished = false;
};

// A caller's request for a step.
struct StepCall {
  GlobalId step;
  std::vector<GlobalId> contexts;  // their gradients are added up; may be empty
  optim::StepTerms terms;
  uint64_t ended_before = 0;     // see optim::StepRecords
  bool in_turn = false;          // see optim::StepRequest
  GlobalId life = {};            // the step is refused in any other life; no id: any life
  optim::RoundPlace round = {};  // in a round that the lead has named; otherwise its number is 0
  uint32_t seats = 1;            // see optim::StepRequest
};

// A trainer's request for a turn.
struct TurnCall {
  GlobalId turn;              // a new one for each attempt of a step
  uint64_t ended_before = 0;  // the trainer's turns with smaller numbers are over
  GlobalId life = {};         // as in StepCall
  TurnWishes wishes = {};     // used for rounds
  uint32_t seats = 1;         // as in StepCall
};

// An owner's answer to the checks before a step.
struct PrepareResult {
  uint64_t steps_accepted = 0;
  // The sum of squares over all gradients. Not finite if one of them is not; 0 if they were not
  // measured.
  double sum_of_squares = 0;
  double loss_scale = 0;  // the optimizer's loss scale; 0 if it does not scale losses
};

// Client and server side of the "optimizer.*" methods. Thread-safe.
class OptimizerService {
 public:
  // The parts of the worker that the service uses. They must outlive the service.
  struct Uses {
    rpc::RpcAgent& agent;
    store::Store& store;
    change::Changes& changes;
    rref::RRefContext& rrefs;
    rref::CreationGate& creations;
    dist_autograd::DistAutograd& autograd;
    dist_autograd::Exchange& exchange;
    const optim::OptimizerRegistry& optimizers;
    IdSource& ids;
    Executor& executor;
    TimerQueue& timers;
  };

  // Registers the methods. The agent must not have started.
  explicit OptimizerService(Uses uses);

  // Returns the optimizer of `groups`, whose parameters are all on `owner`, and creates it if it
  // does not exist. It is shared under `name`, or private if `name` is empty. Waits for parameters
  // that are being made. Errors: FAILED_PRECONDITION if the name exists with other parameters,
  // options or settings; ABORTED if it exists in another life than `terms` says, or if it was
  // dropped meanwhile; INVALID_ARGUMENT; RESOURCE_EXHAUSTED.
  Future<rref::RRef> Create(const std::string& owner, const std::string& name,
                            const std::vector<GroupRequest>& groups,
                            const optim::OptimizerSettings& settings,
                            const rpc::CallOptions& options, const PartTerms& terms = {});

  // Asks `owner` for a report on its part of a named optimizer.
  Future<optim::PartReport> Part(const std::string& owner, const std::string& name,
                                 const rpc::CallOptions& options);

  // Checks whether a client that uses only this owner may use its part of a named optimizer. Asks
  // the other owners of the part's life, as far as they can be reached. OK if there is no part.
  // Errors: FAILED_PRECONDITION as by optim::CheckWhole.
  Future<Unit> CheckHere(const std::string& name, const rpc::CallOptions& options);

  // Applies the gradients that the contexts have collected on the optimizer's owner.
  Future<optim::StepResult> Step(const rref::RRef& optimizer, const StepCall& step,
                                 const rpc::CallOptions& options);

  // As Step, for a client that is not a worker, on a named optimizer of this worker. `done` is
  // called when the step has ended, which is never before its last byte is written. The step ends
  // early only when `member`'s session ends (see EndSession), or if `begin_apply` returns false; it
  // is called at most once, right before the first byte is written (see optim::StepRequest).
  // Errors: NOT_FOUND; PERMISSION_DENIED; those of OwnerOptimizer::Step; FAILED_PRECONDITION if
  // another owner of the optimizer is known to have been restarted, or if several owners must agree
  // on the order of its steps.
  void StepHere(const rpc::Asker& asker, const std::string& name, const StepCall& step,
                optim::Member member, absl::AnyInvocable<bool()> begin_apply,
                absl::AnyInvocable<void(absl::StatusOr<optim::StepResult>)> done);
  // Returns the life of an optimizer of this worker. Errors: those of local_entry().
  absl::StatusOr<GlobalId> LifeHere(const rref::RRef& optimizer) const;
  // Whether this worker has an optimizer of that name in that life.
  bool LivesHere(const std::string& name, GlobalId life) const;
  // Tells the optimizers that the session {incarnation, epoch} has ended for ever. Its steps no
  // longer wait, and other steps no longer wait for it.
  void EndSession(GlobalId session) PSD_EXCLUDES(mutex_);
  // Tells the optimizers that the session's steps with numbers below `before` are given up. Those
  // that wait for other trainers leave their rounds and are not applied.
  void GiveUp(GlobalId session, uint64_t before) PSD_EXCLUDES(mutex_);

  // Makes the checks of a step. If `measure`, also measures the gradients, and may wait as a step
  // does. Changes nothing. The terms of `step` are ignored.
  Future<PrepareResult> Prepare(const rref::RRef& optimizer, const StepCall& step, bool measure,
                                const rpc::CallOptions& options);

  // Waits for a turn; see OwnerOptimizer. The caller must end the turn, whatever the answer. The
  // message that ends it is repeated until the owner has it, or until this worker's session there
  // has ended.
  Future<TurnAnswer> TakeTurn(const rref::RRef& optimizer, const TurnCall& turn,
                              const rpc::CallOptions& options);
  void EndTurn(const rref::RRef& optimizer, GlobalId turn, bool applied);

  // See OwnerOptimizer. A change is refused in any other life than `life`; without an id in `life`
  // it is never refused for this reason.
  Future<optim::GroupOptions> Options(const rref::RRef& optimizer, size_t group,
                                      const rpc::CallOptions& options);
  Future<optim::GroupOptions> SetOptions(const rref::RRef& optimizer, size_t group,
                                         const std::map<std::string, double>& changes,
                                         uint64_t version, GlobalId life,
                                         const rpc::CallOptions& options);

  // Tells the owner that this worker takes part in no round of the optimizer until its next step.
  // The message is repeated until the owner has it, or until this worker's session there has ended.
  // If it arrives after the worker's next step, it does nothing. If `stays`, the worker still uses
  // the optimizer, so another trainer may step for it.
  void Leave(const rref::RRef& optimizer, bool stays);

 private:
  absl::Status ServeCreate(const rpc::Answer<rpc::Contents>& answer,
                           v1::CreateOptimizerRequest request);
  absl::StatusOr<v1::PartReply> ServePart(const rpc::CallPtr& call, v1::PartRequest request);
  absl::Status ServePrepare(const rpc::Answer<v1::PrepareReply>& answer,
                            v1::PrepareRequest request);
  absl::Status ServeStep(const rpc::Answer<v1::StepReply>& answer, v1::StepRequest request);
  absl::Status ServeTakeTurn(const rpc::Answer<v1::TurnReply>& answer, v1::TurnRequest request);
  absl::Status ServeEndTurn(const rpc::CallPtr& call, v1::TurnRequest request);
  absl::StatusOr<v1::OptionsReply> ServeOptions(const rpc::CallPtr& call,
                                                v1::OptionsRequest request);
  absl::Status ServeSetOptions(const rpc::Answer<v1::OptionsReply>& answer,
                               v1::SetOptionsRequest request);
  absl::Status ServeLeave(const rpc::CallPtr& call, v1::LeaveOptimizerRequest request);

  // Returns the answer to a creation that made or found `entry`. The caller joins the optimizer
  // (see OwnerOptimizer::Join). Errors: NOT_FOUND if it has been dropped since; ABORTED if it has
  // another life than `expected`.
  absl::StatusOr<rpc::Contents> AnswerCreation(rpc::ServerCall& call, const store::EntryPtr& entry,
                                               GlobalId expected, const optim::OptimizerLife& life,
                                               uint64_t turns_ended_before);
  // Reports on this owner's part of a named optimizer.
  optim::PartReport ReportHere(const std::string& name) const;
  // Checks whether a client that names no other owner may step the part.
  absl::Status CheckStepHere(const std::string& name, const optim::OwnerOptimizer& part) const;
  // Drops the part called `name` if it has the life `replaced`.
  void DropPart(const std::string& name, GlobalId replaced);
  // Returns the life in which a new part begins, as its creator has asked.
  optim::OptimizerLife FirstLife(const v1::CreateOptimizerRequest& request,
                                 optim::OptimizerLife given);
  // Adds an optimizer to those that are told when a session ends and when this worker drains.
  void Remember(const std::shared_ptr<optim::OwnerOptimizer>& optimizer) PSD_EXCLUDES(mutex_);

  void AddOptimizer(const std::shared_ptr<optim::OwnerOptimizer>& optimizer) PSD_REQUIRES(mutex_);
  // Returns the optimizers that are still in use.
  std::vector<std::shared_ptr<optim::OwnerOptimizer>> Optimizers() const PSD_EXCLUDES(mutex_);
  // Answers the steps that wait for steps of other trainers, because no more of them come.
  void CloseGates() PSD_EXCLUDES(mutex_);

  // Does the work of Create once all parameters have been made.
  Future<rref::RRef> SendCreate(const std::string& owner, const std::string& name,
                                const std::vector<GroupRequest>& groups,
                                const optim::OptimizerSettings& settings,
                                const rpc::CallOptions& options, const PartTerms& terms);
  // Sends `message` to the optimizer's owner, and returns the result of `decode` for the reply.
  template <typename Result, typename RequestType, typename ReplyType, typename Decode>
  Future<Result> AskOwner(const rpc::Declared<RequestType, ReplyType>& method,
                          const rref::RRef& optimizer, RequestType message,
                          const rpc::CallOptions& options, Decode decode);

  // Sends `message` to the optimizer's owner until it is answered, or until this worker's session
  // there has ended. After a failure it is sent again after `pause`.
  template <typename RequestType>
  void SendUntilAnswered(const rpc::Declared<RequestType, Unit>& method,
                         const rref::RRef& optimizer, const RequestType& message,
                         absl::Duration pause);

  const Uses uses_;

  mutable Mutex mutex_;  // leaf
  std::vector<std::weak_ptr<optim::OwnerOptimizer>> optimizers_ PSD_GUARDED_BY(mutex_);
  bool gates_closed_ PSD_GUARDED_BY(mutex_) = false;
  size_t next_sweep_ PSD_GUARDED_BY(mutex_) = 64;  // at this size, expired ones are removed
};

}  // namespace psd::services
