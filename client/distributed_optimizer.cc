#include <map>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/psd.h"
#include "client/worker_state.h"
#include "core/worker/optimizer_service.h"

namespace psd {
namespace {

// The parameters of one owner, in the order given.
struct OwnerPart {
  std::string owner;
  std::vector<RRef> parameters;
  RRef optimizer;
};

// Groups by owner, in order of first appearance.
// Errors: INVALID_ARGUMENT for an RRef to nothing or one given twice.
absl::StatusOr<std::vector<OwnerPart>> GroupByOwner(const std::vector<RRef>& parameters) {
  std::vector<OwnerPart> parts;
  std::map<std::string, size_t> index;
  absl::flat_hash_set<GlobalId> seen;
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (!parameters[i].valid()) {
      return absl::InvalidArgumentError(absl::StrCat("parameter ", i, " refers to nothing"));
    }
    if (!seen.insert(parameters[i].value_id()).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("parameter ", i, ", ", parameters[i].ToString(), ", is given twice"));
    }
    auto [place, is_new] = index.emplace(parameters[i].owner(), parts.size());
    if (is_new) parts.push_back({parameters[i].owner(), {}, {}});
    parts[place->second].parameters.push_back(parameters[i]);
  }
  return parts;
}

}  // namespace

Sgd::operator OptimizerSpec() const {
  return {"sgd",
          {{"lr", lr},
           {"momentum", momentum},
           {"dampening", dampening},
           {"weight_decay", weight_decay},
           {"nesterov", nesterov},
           {"maximize", maximize}}};
}

Adam::operator OptimizerSpec() const {
  return {"adam",
          {{"lr", lr},
           {"beta1", beta1},
           {"beta2", beta2},
           {"eps", eps},
           {"weight_decay", weight_decay},
           {"amsgrad", amsgrad},
           {"maximize", maximize}}};
}

AdamW::operator OptimizerSpec() const {
  OptimizerSpec spec = Adam{lr, beta1, beta2, eps, weight_decay, amsgrad, maximize};
  spec.type = "adamw";
  return spec;
}

absl::Status StepOutcome::status() const {
  std::vector<std::string> failed, applied;
  const OwnerOutcome* first = nullptr;
  bool fate_unknown = false;
  for (const OwnerOutcome& owner : owners) {
    if (owner.status.ok()) {
      applied.push_back(owner.owner);
      continue;
    }
    if (first == nullptr) first = &owner;
    fate_unknown |= owner.fate_unknown;
    failed.push_back(absl::StrCat(owner.owner, " (", absl::StatusCodeToString(owner.status.code()),
                                  ": ", owner.status.message(),
                                  owner.fate_unknown ? "; may have been applied" : "", ")"));
  }
  if (first == nullptr) return absl::OkStatus();
  absl::Status combined(
      first->status.code(),
      absl::StrCat("step ", step_id.ToString(), " failed on ", absl::StrJoin(failed, ", "),
                   applied.empty()
                       ? "; it was applied on no owner"
                       : absl::StrCat("; it was applied on ", absl::StrJoin(applied, ", "))));
  auto detail = GetDetail(first->status).value_or(ErrorDetail{});
  detail.worker = first->owner;
  detail.fate_unknown = fate_unknown;
  return WithDetail(std::move(combined), detail);
}

struct DistributedOptimizer::State {
  std::shared_ptr<Worker::State> worker;  // shared with the worker
  OptimizerSpec spec;
  std::vector<OwnerPart> parts;

  absl::Status CreateOnOwners(const std::string& name);
};

// Asks all owners at once; reports every owner that failed.
absl::Status DistributedOptimizer::State::CreateOnOwners(const std::string& name) {
  std::vector<Future<RRef>> created;
  for (const OwnerPart& part : parts) {
    created.push_back(worker->runtime->optimizer_service().Create(
        part.owner, name, spec, part.parameters, worker->ToCallOptions({})));
  }
  std::vector<std::string> failed;
  absl::StatusCode code = absl::StatusCode::kOk;
  ErrorDetail detail;  // of the first that failed
  for (size_t i = 0; i < parts.size(); ++i) {
    const absl::StatusOr<RRef>& optimizer = created[i].Wait();
    if (optimizer.ok()) {
      parts[i].optimizer = *optimizer;
      continue;
    }
    if (failed.empty()) {
      code = optimizer.status().code();
      detail = GetDetail(optimizer.status()).value_or(ErrorDetail{});
      detail.worker = parts[i].owner;
    }
    failed.push_back(absl::StrCat(parts[i].owner, ": ", optimizer.status().message()));
  }
  if (failed.empty()) return absl::OkStatus();
  return WithDetail(absl::Status(code, absl::StrCat("optimizer ", name.empty() ? "(private)" : name,
                                                    " on ", absl::StrJoin(failed, "; "))),
                    detail);
}

absl::StatusOr<std::unique_ptr<DistributedOptimizer>> DistributedOptimizer::Create(
    Worker& worker, const std::string& name, const OptimizerSpec& spec,
    const std::vector<RRef>& parameters) {
  if (name.empty()) {
    return absl::InvalidArgumentError(
        "a named optimizer needs a name; leave the argument out for a private one");
  }
  return Make(worker, name, spec, parameters);
}

absl::StatusOr<std::unique_ptr<DistributedOptimizer>> DistributedOptimizer::Create(
    Worker& worker, const OptimizerSpec& spec, const std::vector<RRef>& parameters) {
  return Make(worker, "", spec, parameters);
}

absl::StatusOr<std::unique_ptr<DistributedOptimizer>> DistributedOptimizer::Make(
    Worker& worker, const std::string& name, const OptimizerSpec& spec,
    const std::vector<RRef>& parameters) {
  PSD_RETURN_IF_ERROR(worker.state_->CheckRunning());
  auto state = std::make_unique<State>();
  state->worker = worker.state_;
  // Refused here, with every default filled in, before any owner is asked.
  PSD_ASSIGN_OR_RETURN(auto function, worker.state_->runtime->optimizers().Create(spec));
  state->spec = function->spec();
  PSD_ASSIGN_OR_RETURN(state->parts, GroupByOwner(parameters));
  PSD_RETURN_IF_ERROR(state->CreateOnOwners(name));
  return std::unique_ptr<DistributedOptimizer>(new DistributedOptimizer(std::move(state)));
}

DistributedOptimizer::DistributedOptimizer(std::unique_ptr<State> state)
    : state_(std::move(state)) {}

DistributedOptimizer::~DistributedOptimizer() = default;

const OptimizerSpec& DistributedOptimizer::spec() const {
  return state_->spec;
}

StepOutcome DistributedOptimizer::StepDetailed(const Context& context) {
  worker::Runtime& runtime = *state_->worker->runtime;
  StepOutcome outcome;
  outcome.step_id = runtime.ids().Next();
  // An owner that this context never reached has collected nothing in it.
  std::vector<std::string> reached = context.state_->KnownWorkers();
  reached.push_back(runtime.name());
  absl::flat_hash_set<std::string> known(reached.begin(), reached.end());
  absl::Status usable = state_->worker->CheckRunning();
  if (usable.ok()) usable = runtime.autograd().Find(context.id()).status();

  std::vector<Future<optim::StepResult>> answers;
  for (const OwnerPart& part : state_->parts) {
    if (!usable.ok()) {
      answers.push_back(Future<optim::StepResult>::Ready(usable));
    } else if (!known.contains(part.owner)) {
      answers.push_back(Future<optim::StepResult>::Ready(optim::StepResult{}));
    } else {
      answers.push_back(runtime.optimizer_service().Step(
          part.optimizer, context.id(), outcome.step_id, state_->worker->ToCallOptions({})));
    }
  }
  for (size_t i = 0; i < answers.size(); ++i) {
    const absl::StatusOr<optim::StepResult>& answer = answers[i].Wait();
    OwnerOutcome owner;
    owner.owner = state_->parts[i].owner;
    owner.status = answer.status();
    if (answer.ok()) {
      owner.steps_accepted = answer->steps_accepted;
      owner.parameters_stepped = answer->parameters_stepped;
      owner.max_staleness = answer->max_staleness;
    } else {
      auto detail = GetDetail(answer.status());
      owner.fate_unknown = detail.has_value() && detail->fate_unknown;
    }
    outcome.owners.push_back(std::move(owner));
  }
  return outcome;
}

}  // namespace psd
