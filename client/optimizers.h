#pragma once

// Part 4 of client/psd.h: optimizers, which step parameters on the owners that hold them.

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/context.h"
#include "client/worker.h"
#include "core/base/ids.h"
#include "core/optim/functional/optimizer_spec.h"
#include "core/optim/options/optimizer_config.h"
#include "core/rref/rref.h"

namespace psd {

using optim::OptimizerSpec;

// The options of the optimizers. Formulas, names and defaults are those of torch.optim. Each struct
// converts to the OptimizerSpec that DistributedOptimizer::Create takes. stochastic_rounding is
// accepted for bf16 parameters only: rounding to nearest would lose their small steps.
struct Sgd {
  double lr = 0.01;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;
  bool maximize = false;
  bool stochastic_rounding = false;
  operator OptimizerSpec() const;  // NOLINT: options are a spec
};

struct Adagrad {
  double lr = 0.01;
  double lr_decay = 0;
  double weight_decay = 0;
  double initial_accumulator_value = 0;
  double eps = 1e-10;
  bool maximize = false;
  bool stochastic_rounding = false;
  operator OptimizerSpec() const;  // NOLINT
};

struct Adam {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  bool amsgrad = false;
  bool maximize = false;
  bool stochastic_rounding = false;
  operator OptimizerSpec() const;  // NOLINT
};

struct AdamW {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.01;
  bool amsgrad = false;
  bool maximize = false;
  bool stochastic_rounding = false;
  operator OptimizerSpec() const;  // NOLINT
};

struct Adamax {
  double lr = 1e-3;  // the default of PyTorch's functional adamax; the class Adamax has 0.002
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  bool maximize = false;
  bool stochastic_rounding = false;
  operator OptimizerSpec() const;  // NOLINT
};

struct Adadelta {
  double lr = 1;
  double rho = 0.9;
  double eps = 1e-6;
  double weight_decay = 0;
  bool maximize = false;
  bool stochastic_rounding = false;
  operator OptimizerSpec() const;  // NOLINT
};

struct RmsProp {
  double lr = 0.01;
  double alpha = 0.99;
  double eps = 1e-8;
  double weight_decay = 0;
  double momentum = 0;
  bool centered = false;
  bool maximize = false;
  bool stochastic_rounding = false;
  operator OptimizerSpec() const;  // NOLINT
};

struct Rprop {
  double lr = 0.01;  // the size of the first step
  double etaminus = 0.5;
  double etaplus = 1.2;
  double step_size_min = 1e-6;
  double step_size_max = 50;
  bool maximize = false;
  bool stochastic_rounding = false;
  operator OptimizerSpec() const;  // NOLINT
};

// For tables only: torch.optim.SparseAdam.
struct SparseAdam {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  bool maximize = false;
  operator OptimizerSpec() const;  // NOLINT
};

// For tables only: Adagrad with one accumulator per row, to which the mean of the squares of the
// row's gradient is added. FBGEMM and TorchRec use the same formula.
struct RowwiseAdagrad {
  double lr = 0.01;
  double lr_decay = 0;
  double initial_accumulator_value = 0;
  double eps = 1e-10;
  bool maximize = false;
  operator OptimizerSpec() const;  // NOLINT
};

// Parameters that share options: those of the optimizer's spec, with the changes in `options`.
struct ParameterGroup {
  std::vector<RRef> parameters;
  std::map<std::string, double> options;
};

// OptimizerSettings hold for a whole optimizer. All trainers that share a named optimizer must give
// the same settings.
//   schedule      Sets the learning rate by the number of accepted steps, for example
//                 Schedule::Cosine(10'000).WithWarmup(500). The owner with the smallest name counts
//                 the steps. With several owners every step needs one more exchange.
//   loss_scaling  LossScaling::Dynamic() adapts the factor by which trainers multiply their losses;
//                 see StepOptions::loss_scale. Every step needs one more exchange.
//   mode          Says when a step is applied:
//     UpdateMode::Asynchronous()       Each step is applied on its own, as it comes.
//     UpdateMode::Synchronous(n)       Steps are applied in rounds: one step of each of n trainers,
//                                      applied as one, with the mean of their gradients, or the
//                                      sum if UpdateMode::Reduction::kSum is given as well.
//                                      Every step waits for its round. A trainer that dies or
//                                      leaves is dropped from the round. A step over several
//                                      owners needs one more exchange than a step on one.
//     UpdateMode::BoundedStaleness(s)  Each step is applied on its own, but a gradient that was
//                                      computed from a version more than s behind is refused with
//                                      FAILED_PRECONDITION, and so is one of an unknown version
//                                      unless the mode is made WithUnknownVersions(). With
//                                      WhenStale::kWait a step also waits as long as it would make
//                                      gradients too old that other trainers are still computing;
//                                      with several owners that needs one more exchange.
//                 A trainer is a member of the optimizer, and is waited for, from its first step
//                 until it destroys its DistributedOptimizer or its sessions end.
using optim::LossScaling;
using optim::OptimizerSettings;
using optim::Schedule;
using optim::UpdateMode;

// Says how a trainer joins a named optimizer.
struct JoinOptions {
  // If only a part of the optimizer is left, because an owner was restarted and lost its part, then
  // all of it begins afresh: without state, and at step 0 on every owner. The parameters stay as
  // they are. The option has no effect if the optimizer is whole, so every trainer of a job may set
  // it. It also has no effect while a load has not finished, or if the given parameters are on
  // other owners.
  bool start_afresh = false;
};

// The options of one step.
struct StepOptions {
  // Every element of a gradient is clamped to [-clip_value, clip_value]. At least 0.
  double clip_value = std::numeric_limits<double>::infinity();
  // Scales all gradients by one factor so that their common norm, over all owners, is at most this
  // (torch.nn.utils.clip_grad_norm_). Applied before clip_value. Needs one more exchange. A NaN or
  // infinity among the gradients fails the step with INVALID_ARGUMENT before anything has changed.
  double clip_norm = std::numeric_limits<double>::infinity();
  // The factor by which the loss was multiplied; gradients are divided by it. 0 means that the loss
  // was not scaled. An optimizer with loss scaling requires the value that LossScale() returned
  // before Backward. It skips a step with a NaN or infinity on any owner on all owners, and moves
  // the scale by the rules of torch.cuda.amp.GradScaler.
  double loss_scale = 0;
  // For a step with several contexts: applies the mean of their gradients instead of the sum.
  bool mean_of_contexts = false;
  // If true, no owner applies the step before every owner has checked it. Needs one more exchange.
  bool check_first = false;
  // In a synchronous mode: the number of trainers whose gradients the step carries, already added
  // up. A round of n trainers is complete when its steps are for n seats, and its mean is over the
  // seats. The trainer keeps its seats until it steps for another number of them or is dropped from
  // the rounds. From 1 to n; 1 in all other modes. Fails with RESOURCE_EXHAUSTED if other trainers
  // have too many of the seats. See client/ddp/hierarchical_push.h.
  uint32_t seats = 1;
  // The timeout of each exchange, as CallOptions::timeout. A synchronous step waits for the other
  // trainers within it.
  std::optional<absl::Duration> timeout;
};

// The result of one step on one owner.
struct OwnerOutcome {
  std::string owner;
  absl::Status status;          // OK if the step was applied there, or had nothing to do there
  bool fate_unknown = false;    // the step may or may not have been applied
  bool held_back = false;       // not applied only because another owner's check failed
  uint64_t steps_accepted = 0;  // so far, by that owner, from all trainers together
  int parameters_stepped = 0;   // in this step, on that owner
  // The largest number of versions by which a parameter was ahead of the version that a gradient
  // was computed from.
  uint64_t max_staleness = 0;
  // The number of trainers whose gradients were applied (StepOptions::seats): several in a round.
  int trainers = 0;
};

struct StepAttempt;
struct OwnOptimizerPart;

struct StepOutcome {
  GlobalId step_id;
  // If no owner was asked to apply the step, an error that says why.
  absl::Status refused;
  std::vector<OwnerOutcome> owners;  // in order of first appearance among the parameters
  bool skipped = false;      // applied on no owner because a scaled loss overflowed; not an error
  double gradient_norm = 0;  // before clipping; measured for clip_norm and loss scaling only
  // For RetryFailed; shared with copies.
  std::shared_ptr<const StepAttempt> attempt;
  // Returns OK if the step succeeded everywhere. Otherwise one error names every owner that failed
  // and the owners where the step was applied.
  absl::Status status() const;
};

// An optimizer over parameters on any number of owners. Each owner keeps the state of its own
// parameters and steps them. Thread-safe. Steps that share a parameter are applied one after the
// other on its owner.
class DistributedOptimizer {
 public:
  // Creates or joins a named optimizer. All trainers that give the same name, parameters, options
  // and settings share one optimizer and its state, which live until the name is dropped on the
  // owners.
  // Errors: FAILED_PRECONDITION if the name exists with other parameters, options or settings, or
  // if a part of the optimizer is missing because its owner was restarted or the part was dropped.
  // The error names that owner and says how to restore the part (see also JoinOptions).
  // INVALID_ARGUMENT for an unknown or out-of-range option, no parameters at all, an RRef that is
  // no parameter, or a parameter that is given twice. The errors of all owners are reported.
  static absl::StatusOr<std::unique_ptr<DistributedOptimizer>> Create(
      Worker& worker, const std::string& name, const OptimizerSpec& spec,
      const std::vector<RRef>& parameters, const OptimizerSettings& settings = {},
      const JoinOptions& join = {});
  static absl::StatusOr<std::unique_ptr<DistributedOptimizer>> Create(
      Worker& worker, const std::string& name, const OptimizerSpec& spec,
      const std::vector<ParameterGroup>& groups, const OptimizerSettings& settings = {},
      const JoinOptions& join = {});
  // Creates an optimizer that only this object uses. Its state ends with this object or with the
  // worker's sessions.
  static absl::StatusOr<std::unique_ptr<DistributedOptimizer>> Create(
      Worker& worker, const OptimizerSpec& spec, const std::vector<RRef>& parameters,
      const OptimizerSettings& settings = {});
  static absl::StatusOr<std::unique_ptr<DistributedOptimizer>> Create(
      Worker& worker, const OptimizerSpec& spec, const std::vector<ParameterGroup>& groups,
      const OptimizerSettings& settings = {});
  ~DistributedOptimizer();

  // Applies the gradients of `context` on all owners in parallel, and waits for them. Parameters
  // without a gradient stay untouched. A retried message is not applied twice.
  // Errors: FAILED_PRECONDITION, with nothing applied, if one of several owners was restarted since
  // Create, or if the optimizer was loaded from a save or begun afresh; create it again then. Also
  // the errors of the settings' mode. A step that fails on some owners may have been applied on
  // others: StepDetailed tells, and RetryFailed tries again.
  absl::Status Step(const Context& context, const StepOptions& options = {}) {
    return StepDetailed(context, options).status();
  }
  StepOutcome StepDetailed(const Context& context, const StepOptions& options = {});
  // Takes one step with the sum of the gradients of several contexts (gradient accumulation).
  StepOutcome StepDetailed(const std::vector<const Context*>& contexts,
                           const StepOptions& options = {});
  // Repeats a step on the owners where it failed. Because it keeps the id of the step, an owner
  // that had applied the step, although its answer was lost, does not apply it again. The contexts
  // of the step must still exist.
  StepOutcome RetryFailed(const StepOutcome& outcome);

  // Returns the factor to multiply the next loss by. 1 without loss scaling.
  double LossScale() const;

  // Changes options of one group for all trainers that share the optimizer, from the next step on.
  // `group` counts from 0 in the order of creation. With a schedule, "lr" is the rate from which
  // the schedule computes.
  // Errors: INVALID_ARGUMENT (no such group, unknown or out-of-range option); FAILED_PRECONDITION
  // if the change needs optimizer state that was not created (such as momentum above 0 after 0).
  absl::Status SetOptions(size_t group, const std::map<std::string, double>& changes);
  // Returns the present options of one group.
  absl::StatusOr<OptimizerSpec> Options(size_t group = 0) const;

  // Returns the options of the first group at creation, with every default filled in.
  const OptimizerSpec& spec() const;

 private:
  // client/own_optimizer_part.h
  friend absl::StatusOr<OwnOptimizerPart> OwnPartOf(const DistributedOptimizer& optimizer);
  friend void LossScaleLoaded(DistributedOptimizer& optimizer, double scale);
  friend class StepsForOthers;  // client/steps_for_others.h
  struct State;
  static absl::StatusOr<std::unique_ptr<DistributedOptimizer>> Make(
      Worker& worker, const std::string& name, const OptimizerSpec& spec,
      const std::vector<ParameterGroup>& groups, const OptimizerSettings& settings,
      const JoinOptions& join);
  explicit DistributedOptimizer(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace psd
