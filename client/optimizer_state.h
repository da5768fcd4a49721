#pragma once

// What is behind the public face's DistributedOptimizer. Internal to client/.

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/open_ids.h"
#include "client/psd.h"
#include "client/worker_state.h"
#include "core/optim/owner/optimizer_life.h"
#include "core/optim/steps/step_request.h"
#include "core/worker/optimizer_service.h"

namespace psd {

// What of an optimizer lies on one owner.
struct OptimizerPart {
  std::string owner;
  std::vector<worker::GroupRequest> groups;  // all of them; those elsewhere are empty here
  RRef optimizer;
};

struct DistributedOptimizer::State {
  std::shared_ptr<Worker::State> worker;  // shared with the worker
  std::string name;                       // empty: private
  OptimizerSpec spec;                     // of the first group, at creation
  OptimizerSettings settings;
  // By owner, in order of first appearance.
  std::vector<OptimizerPart> parts;
  // The part on the owner of the smallest name, whatever order a trainer lists parameters in. That
  // owner leads: it decides what all must agree on.
  size_t lead = 0;
  std::atomic<double> loss_scale{0};  // the lead's, as last heard
  GlobalId life;  // that steps belong to, see core/optim/owner/optimizer_life.h; none: private

  absl::Status CreateOnOwners(const JoinOptions& join);
  // A private optimizer, or a named one of a life that owners were asked for.
  absl::Status CreateParts(const std::vector<worker::PartTerms>& terms);
  absl::StatusOr<std::vector<optim::PartReport>> AskParts() const;
  // The life that the optimizer's parts are to be of, for each of them.
  absl::StatusOr<std::vector<worker::PartTerms>> ChooseLife(const JoinOptions& join) const;
  // Makes the other owners' options those that the lead has.
  absl::Status FollowLead();
  // Has the lead change options.
  absl::StatusOr<optim::GroupOptions> DecideOptions(size_t group,
                                                    const std::map<std::string, double>& changes);
  // Tells the other owners what the lead has decided.
  absl::Status TellFollowers(size_t group, const optim::GroupOptions& decided);
  worker::OptimizerService& service() const { return worker->runtime->optimizer_service(); }

  // Errors: FAILED_PRECONDITION when it is known that one of several owners was restarted.
  absl::Status CheckOwnersLive() const;
  // Whether steps wait for their turn at the lead, because several owners must see them in one
  // order.
  bool TakesTurns() const;
  // One step over all owners. `attempt` is what was decided before, if this is a retry.
  StepOutcome Run(std::shared_ptr<StepAttempt> attempt);
  void RunInTurn(StepAttempt& attempt, StepOutcome& outcome);
  // Asks owners to check and measure, where that is needed, and decides the terms. False: nothing
  // may be applied, `outcome` says why.
  bool Decide(StepAttempt& attempt, StepOutcome& outcome);
  bool Prepare(const StepAttempt& attempt, bool measure,
               std::vector<worker::PrepareResult>& answers, StepOutcome& outcome);
  void Apply(const StepAttempt& attempt, StepOutcome& outcome);
};

// One step as it was asked for and decided; kept for RetryFailed.
struct StepAttempt {
  GlobalId step_id;
  std::shared_ptr<const OpenIds::Id> open;  // shared with retries; null once it has succeeded
  std::vector<GlobalId> contexts;
  // Both have one element for each part of the optimizer: the contexts that have reached its owner,
  // and whether that owner takes part in this step.
  std::vector<std::vector<GlobalId>> reached;
  std::vector<bool> asked;
  StepOptions options;
  bool decided = false;
  optim::StepTerms terms;
  double gradient_norm = 0;
};

// One error for what several owners said of `what`, of the first one's code and detail.
absl::Status CombineFailures(
    const std::string& what,
    const std::vector<std::pair<std::string, absl::Status>>& failures_by_owner);

}  // namespace psd
