#pragma once

// A train step over any number of owners, phase by phase, so that tests can interrupt it. Used by
// the tests and by the trainer that they start as a process.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/psd.h"
#include "core/base/log.h"
#include "core/base/status.h"
#include "core/dist_autograd/backward_options.h"

namespace psd::crash {

inline constexpr char kOptimizer[] = "main";

// Options of a trainer that soon notices an owner's silence but has no other timeouts, so its
// errors never come from a timeout of its own calls.
inline WorkerOptions TrainerOptions(const std::string& name,
                                    const std::vector<OwnerAddress>& owners) {
  WorkerOptions options;
  options.name = name;
  options.owners = owners;
  options.default_timeout = absl::ZeroDuration();
  options.session.silence = absl::Seconds(1);
  options.session.retry_window = absl::Hours(1);
  options.logger = NewStderrLogger(LogLevel::kError);
  return options;
}

// A parameter "w" on every owner, all stepped by the optimizer "main". A step with learning rate 1
// and gradient 1 subtracts 1 from every element, so the elements count the steps.
class Training {
 public:
  static absl::StatusOr<Training> Create(Worker& worker, const std::vector<std::string>& owners,
                                         int64_t elements, const JoinOptions& join = {},
                                         const OptimizerSettings& settings = {}) {
    Training training(worker);
    for (const std::string& owner : owners) {
      CreateOptions options;
      options.requires_grad = true;
      PSD_ASSIGN_OR_RETURN(RRef w, worker.GetOrCreate(owner, "w", Zeros({elements}), options));
      training.parameters_.push_back(std::move(w));
    }
    Sgd sgd;
    sgd.lr = 1;
    PSD_ASSIGN_OR_RETURN(training.optimizer_,
                         DistributedOptimizer::Create(worker, kOptimizer, sgd, training.parameters_,
                                                      settings, join));
    return training;
  }

  const std::vector<RRef>& parameters() const { return parameters_; }
  DistributedOptimizer& optimizer() { return *optimizer_; }

  // The phases of a step, to be called in this order.
  absl::Status Pull() {
    context_.reset();
    PSD_ASSIGN_OR_RETURN(Context context, worker_->NewContext());
    context_.emplace(std::move(context));
    PSD_ASSIGN_OR_RETURN(values_, worker_->ToHere(parameters_, *context_));
    return absl::OkStatus();
  }
  absl::Status Backward() {
    dist_autograd::BackwardOptions options;
    options.timeout = absl::Hours(1);
    std::vector<Variable> roots;
    for (const Variable& value : values_) roots.push_back(Sum(value));
    return context_->Backward(roots, options);
  }
  StepOutcome Step() { return optimizer_->StepDetailed(*context_); }
  // Ends the context and drops the pulled values.
  void Forget() {
    values_.clear();
    context_.reset();
  }

 private:
  explicit Training(Worker& worker) : worker_(&worker) {}

  Worker* worker_;
  std::vector<RRef> parameters_;
  std::unique_ptr<DistributedOptimizer> optimizer_;
  std::optional<Context> context_;
  std::vector<Variable> values_;
};

}  // namespace psd::crash
