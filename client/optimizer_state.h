#pragma once

// The implementation of DistributedOptimizer. Internal to client/.

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "client/open_ids.h"
#include "client/psd.h"
#include "client/worker_state.h"
#include "core/optim/owner/optimizer_life.h"
#include "core/optim/steps/step_decision.h"
#include "core/optim/steps/step_request.h"
#include "core/services/optimizers/optimizer_service.h"

namespace psd {

// The part of an optimizer that one owner holds.
struct OptimizerPart {
  std::string owner;
  // All groups of the optimizer, each with the parameters that this owner holds, maybe none.
  std::vector<services::GroupRequest> groups;
  RRef optimizer;
};

struct DistributedOptimizer::State {
  std::shared_ptr<Worker::State> worker;  // shared with the worker
  std::string name;                       // empty: private
  OptimizerSpec spec;                     // of the first group, at creation
  OptimizerSettings settings;
  // One part for each owner, in order of first appearance.
  std::vector<OptimizerPart> parts;
  // The index of the part on the lead, which is the owner with the smallest name, in whatever order
  // a trainer lists parameters. The lead decides everything on which all owners must agree.
  size_t lead = 0;
  std::atomic<double> loss_scale{0};  // the latest one that the lead has reported
  // The life of the optimizer that steps belong to (core/optim/owner/optimizer_life.h). A private
  // optimizer has no life.
  GlobalId life;

  // Creates or joins the parts on all owners. Other trainers may do so at the same time.
  absl::Status CreateOnOwners(const JoinOptions& join);
  // Asks all owners to create their parts. `terms` has one element for each part.
  absl::Status CreateParts(const std::vector<services::PartTerms>& terms);
  // Asks all owners which part of the named optimizer they have.
  absl::StatusOr<std::vector<optim::PartReport>> ReportsOfParts() const;
  // Returns, for each part, the life in which it is to be created or joined.
  absl::StatusOr<std::vector<services::PartTerms>> ChooseLife(const JoinOptions& join) const;
  // Copies the lead's options to the other owners. This completes a change of options whose trainer
  // died after the lead had decided it and before all other owners had taken it.
  absl::Status FollowLead();
  absl::Status FollowLead(size_t group);
  absl::StatusOr<optim::GroupOptions> OptionsOf(size_t part, size_t group) const;
  // Changes options on the lead. A version other than 0 was decided before, see
  // services::OptimizerService::SetOptions.
  absl::StatusOr<optim::GroupOptions> DecideOptions(size_t group,
                                                    const std::map<std::string, double>& changes,
                                                    uint64_t version = 0);
  // The followers' answers to options that the lead has decided.
  struct FollowersAnswer {
    absl::Status status;
    std::optional<size_t> refused_by;  // the part that cannot take these options, now or later
    optim::GroupOptions newest;        // of all owners
  };
  FollowersAnswer TellFollowers(size_t group, const optim::GroupOptions& decided);
  // Tells the lead a decision that it has forgotten because its part was dropped and created again
  // in the same life. Returns false if the lead knows that decision, or a later one.
  absl::StatusOr<bool> Remind(size_t group, const FollowersAnswer& answer);
  // Sets loss_scale to the one that the lead has now. Requires: losses are scaled.
  absl::Status RefreshLossScale(std::optional<absl::Duration> timeout);
  // Takes part in no round until the next step. See services::OptimizerService::Leave.
  void Leave(bool stays) const;
  services::OptimizerService& service() const { return worker->runtime->optimizer_service(); }

  // Errors: FAILED_PRECONDITION if there are several owners and this worker knows that one was
  // restarted.
  absl::Status CheckOwnersLive() const;
  // Whether each step waits for its turn at the lead because all owners must apply the steps in the
  // same order.
  bool TakesTurns() const;
  // Whether the step takes part in a synchronous round that the lead names. All owners must then
  // collect the same members: once if they only step, twice if they measure first.
  bool GoesInRounds(const optim::StepWishes& wishes) const;
  // Takes one step over all owners. A retry passes the attempt of the earlier try, whose terms may
  // have been decided already.
  StepOutcome Run(std::shared_ptr<StepAttempt> attempt);
  void RunInTurn(StepAttempt& attempt, StepOutcome& outcome);
  // Takes the step in a round that the lead names. All members of a round have the same terms, so a
  // retry takes part in a round of its own with new terms, on all owners. Owners that have applied
  // the step before do not apply it again.
  void RunInRound(StepAttempt& attempt, const optim::StepWishes& wishes, StepOutcome& outcome);
  // Decides the terms of the step; if needed, first asks owners to check the step and to measure
  // gradients. Returns false if the step must not be applied; `outcome` says why.
  bool Decide(StepAttempt& attempt, StepOutcome& outcome);
  bool Prepare(const StepAttempt& attempt, bool measure,
               std::vector<services::PrepareResult>& answers, StepOutcome& outcome);
  void Apply(const StepAttempt& attempt, StepOutcome& outcome);
};

// One step: the caller's wishes, and the terms once they are decided. Kept for RetryFailed.
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
  optim::RoundPlace round;  // its number is 0 if the step takes part in no round
  uint64_t lead_steps = 0;  // for a step in a round: the number of steps that the lead has accepted
  double gradient_norm = 0;
};

}  // namespace psd
