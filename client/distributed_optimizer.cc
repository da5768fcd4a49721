// Creates DistributedOptimizers and changes their options.

#include <algorithm>
#include <map>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "client/fan_out.h"
#include "client/optimizer_state.h"
#include "client/own_optimizer_part.h"
#include "client/psd.h"
#include "client/steps_for_others.h"
#include "core/base/remedy.h"

namespace psd {
namespace {

// How often owners are asked for the life of an optimizer while other trainers create it.
constexpr int kLooks = 8;

// The groups' specs, with every default filled in.
absl::StatusOr<std::vector<OptimizerSpec>> CompleteSpecs(
    const optim::OptimizerRegistry& registry, const OptimizerSpec& spec,
    const std::vector<ParameterGroup>& groups) {
  std::vector<OptimizerSpec> specs;
  for (const ParameterGroup& group : groups) {
    OptimizerSpec own = spec;
    for (const auto& [name, value] : group.options) own.options[name] = value;
    PSD_ASSIGN_OR_RETURN(auto function, registry.Create(own));
    specs.push_back(function->spec());
  }
  return specs;
}

// Groups the parameters by owner. Errors: INVALID_ARGUMENT for an RRef to nothing or one given
// twice.
absl::StatusOr<std::vector<OptimizerPart>> PartByOwner(const std::vector<OptimizerSpec>& specs,
                                                       const std::vector<ParameterGroup>& groups) {
  std::vector<OptimizerPart> parts;
  std::map<std::string, size_t> index;
  absl::flat_hash_set<GlobalId> seen;
  for (size_t g = 0; g < groups.size(); ++g) {
    for (size_t i = 0; i < groups[g].parameters.size(); ++i) {
      const RRef& parameter = groups[g].parameters[i];
      const auto label = [&] {
        return absl::StrCat("parameter ", i,
                            groups.size() > 1 ? absl::StrCat(" of group ", g) : "");
      };
      if (!parameter.valid())
        return absl::InvalidArgumentError(absl::StrCat(label(), " refers to nothing"));
      if (!seen.insert(parameter.value_id()).second) {
        return absl::InvalidArgumentError(
            absl::StrCat(label(), ", ", parameter.ToString(), ", is given twice"));
      }
      auto [place, is_new] = index.emplace(parameter.owner(), parts.size());
      if (is_new) {
        OptimizerPart& part = parts.emplace_back();
        part.owner = parameter.owner();
        for (const OptimizerSpec& spec : specs) part.groups.push_back({spec, {}});
      }
      parts[place->second].groups[g].parameters.push_back(parameter);
    }
  }
  return parts;
}

}  // namespace

absl::StatusOr<std::vector<optim::PartReport>> DistributedOptimizer::State::ReportsOfParts() const {
  const auto answers = AskParts<optim::PartReport>(parts, [&](size_t i) {
    return service().Part(parts[i].owner, name, worker->ToCallOptions({}));
  });
  PSD_RETURN_IF_ERROR(CombineFailures(absl::StrCat("optimizer ", name), parts, answers));
  std::vector<optim::PartReport> reports;
  for (const absl::StatusOr<optim::PartReport>& report : answers) reports.push_back(*report);
  return reports;
}

absl::StatusOr<std::vector<services::PartTerms>> DistributedOptimizer::State::ChooseLife(
    const JoinOptions& join) const {
  std::vector<services::PartTerms> terms(parts.size());
  if (name.empty()) return terms;
  PSD_ASSIGN_OR_RETURN(const optim::LifeLook look,
                       optim::LookAtLife(name, [this] { return ReportsOfParts(); }));
  const bool afresh = join.start_afresh && look.verdict.kind == optim::LifeVerdict::Kind::kLost;
  if (!afresh) PSD_RETURN_IF_ERROR(look.verdict.error);
  optim::OptimizerLife life;
  life.id = afresh ? GlobalId{} : look.verdict.life;
  if (life.id.IsNone()) life.id = worker->runtime->ids().Next();
  for (const optim::PartReport& report : look.reports) life.owners.push_back(report.owner);
  for (size_t i = 0; i < parts.size(); ++i) {
    terms[i].life = life;
    if (afresh && look.reports[i].hosted) terms[i].replaced = look.reports[i].life.id;
  }
  return terms;
}

// Several trainers may create the optimizer at the same time. The lead takes the life of one of
// them, and the others join that life, so the lead is asked first.
absl::Status DistributedOptimizer::State::CreateParts(
    const std::vector<services::PartTerms>& terms) {
  const std::string what = absl::StrCat("optimizer ", name.empty() ? "(private)" : name);
  const auto create = [&](size_t i) {
    return service().Create(parts[i].owner, name, parts[i].groups, settings,
                            worker->ToCallOptions({}), terms[i]);
  };
  Future<RRef> first;  // the lead's answer, if the lead is asked first
  if (!name.empty()) {
    first = create(lead);
    if (!first.Wait().ok())
      return CombineFailures(what, {{parts[lead].owner, first.Wait().status()}});
  }
  const auto created = AskParts<RRef>(
      parts, [&](size_t i) { return i == lead && first.valid() ? first : create(i); });
  for (size_t i = 0; i < parts.size(); ++i)
    if (created[i].ok()) parts[i].optimizer = *created[i];
  return CombineFailures(what, parts, created);
}

// Asks owners at once; reports every owner that failed.
absl::Status DistributedOptimizer::State::CreateOnOwners(const JoinOptions& join) {
  absl::Status created;
  for (int looks = 0; looks < kLooks; ++looks) {
    PSD_ASSIGN_OR_RETURN(std::vector<services::PartTerms> terms, ChooseLife(join));
    created = CreateParts(terms);
    if (!terms.empty()) life = terms[0].life.id;
    // Another trainer was faster; try again and join the life that it began.
    if (!absl::IsAborted(created)) break;
  }
  PSD_RETURN_IF_ERROR(created);
  if (!name.empty() && parts.size() > 1) PSD_RETURN_IF_ERROR(FollowLead());
  loss_scale = settings.loss_scaling.initial;
  if (!settings.loss_scaling.enabled()) return absl::OkStatus();
  return RefreshLossScale({});  // other trainers may have taken steps before
}

absl::Status DistributedOptimizer::State::RefreshLossScale(std::optional<absl::Duration> timeout) {
  const auto said =
      service()
          .Prepare(parts[lead].optimizer, {{}, {}, {}, 0}, false, worker->ToCallOptions({timeout}))
          .Wait();
  if (!said.ok()) return said.status();
  loss_scale = said->loss_scale;
  return absl::OkStatus();
}

void DistributedOptimizer::State::Leave(bool stays) const {
  if (settings.mode.kind == UpdateMode::Kind::kAsynchronous) return;
  if (!worker->CheckRunning().ok()) return;
  for (const OptimizerPart& part : parts) service().Leave(part.optimizer, stays);
}

absl::Status DistributedOptimizer::State::FollowLead() {
  for (size_t group = 0; group < parts[lead].groups.size(); ++group)
    PSD_RETURN_IF_ERROR(FollowLead(group));
  return absl::OkStatus();
}

absl::Status DistributedOptimizer::State::FollowLead(size_t group) {
  PSD_ASSIGN_OR_RETURN(optim::GroupOptions now, OptionsOf(lead, group));
  FollowersAnswer answer = TellFollowers(group, now);
  if (answer.refused_by.has_value()) {
    // The trainer that wanted these options died before it could take them back.
    PSD_ASSIGN_OR_RETURN(const optim::GroupOptions former, OptionsOf(*answer.refused_by, group));
    PSD_ASSIGN_OR_RETURN(now, DecideOptions(group, former.spec.options));
    return TellFollowers(group, now).status;
  }
  if (!answer.status.ok() || answer.newest.version == now.version) return answer.status;
  PSD_RETURN_IF_ERROR(Remind(group, answer).status());
  PSD_ASSIGN_OR_RETURN(now, OptionsOf(lead, group));
  return TellFollowers(group, now).status;
}

absl::StatusOr<optim::GroupOptions> DistributedOptimizer::State::OptionsOf(size_t part,
                                                                           size_t group) const {
  absl::StatusOr<optim::GroupOptions> options =
      service().Options(parts[part].optimizer, group, worker->ToCallOptions({})).Wait();
  if (!options.ok()) return CombineFailures("options", {{parts[part].owner, options.status()}});
  return options;
}

absl::StatusOr<optim::GroupOptions> DistributedOptimizer::State::DecideOptions(
    size_t group, const std::map<std::string, double>& changes, uint64_t version) {
  const OptimizerPart& part = parts[lead];
  absl::StatusOr<optim::GroupOptions> decided =
      service()
          .SetOptions(part.optimizer, group, changes, version, life, worker->ToCallOptions({}))
          .Wait();
  if (!decided.ok()) return CombineFailures("options", {{part.owner, decided.status()}});
  return decided;
}

DistributedOptimizer::State::FollowersAnswer DistributedOptimizer::State::TellFollowers(
    size_t group, const optim::GroupOptions& decided) {
  const auto answers = AskParts<optim::GroupOptions>(parts, [&](size_t i) {
    if (i == lead) return Future<optim::GroupOptions>::Ready(decided);
    return service().SetOptions(parts[i].optimizer, group, decided.spec.options, decided.version,
                                life, worker->ToCallOptions({}));
  });
  FollowersAnswer all;
  all.newest = decided;
  for (size_t i = 0; i < parts.size(); ++i) {
    const absl::Status& status = answers[i].status();
    if (absl::IsInvalidArgument(status) || absl::IsFailedPrecondition(status)) all.refused_by = i;
    if (status.ok() && answers[i]->version > all.newest.version) all.newest = *answers[i];
  }
  all.status = CombineFailures("options (which the other owners have)", parts, answers);
  return all;
}

absl::StatusOr<bool> DistributedOptimizer::State::Remind(size_t group,
                                                         const FollowersAnswer& answer) {
  PSD_ASSIGN_OR_RETURN(const optim::GroupOptions now, OptionsOf(lead, group));
  if (now.version >= answer.newest.version) return false;
  PSD_RETURN_IF_ERROR(
      DecideOptions(group, answer.newest.spec.options, answer.newest.version).status());
  return true;
}

absl::StatusOr<std::unique_ptr<DistributedOptimizer>> DistributedOptimizer::Create(
    Worker& worker, const std::string& name, const OptimizerSpec& spec,
    const std::vector<RRef>& parameters, const OptimizerSettings& settings,
    const JoinOptions& join) {
  return Create(worker, name, spec, std::vector<ParameterGroup>{{parameters, {}}}, settings, join);
}

absl::StatusOr<std::unique_ptr<DistributedOptimizer>> DistributedOptimizer::Create(
    Worker& worker, const OptimizerSpec& spec, const std::vector<RRef>& parameters,
    const OptimizerSettings& settings) {
  return Create(worker, spec, std::vector<ParameterGroup>{{parameters, {}}}, settings);
}

absl::StatusOr<std::unique_ptr<DistributedOptimizer>> DistributedOptimizer::Create(
    Worker& worker, const std::string& name, const OptimizerSpec& spec,
    const std::vector<ParameterGroup>& groups, const OptimizerSettings& settings,
    const JoinOptions& join) {
  if (name.empty()) {
    return WithRemedy(absl::InvalidArgumentError("a named optimizer needs a name"),
                      "leave the argument out for a private one");
  }
  return Make(worker, name, spec, groups, settings, join);
}

absl::StatusOr<std::unique_ptr<DistributedOptimizer>> DistributedOptimizer::Create(
    Worker& worker, const OptimizerSpec& spec, const std::vector<ParameterGroup>& groups,
    const OptimizerSettings& settings) {
  return Make(worker, "", spec, groups, settings, {});
}

absl::StatusOr<std::unique_ptr<DistributedOptimizer>> DistributedOptimizer::Make(
    Worker& worker, const std::string& name, const OptimizerSpec& spec,
    const std::vector<ParameterGroup>& groups, const OptimizerSettings& settings,
    const JoinOptions& join) {
  PSD_RETURN_IF_ERROR(worker.state_->CheckRunning());
  if (groups.empty()) return absl::InvalidArgumentError("an optimizer needs at least one group");
  PSD_RETURN_IF_ERROR(settings.Check());
  if (name.empty() && settings.mode.kind == UpdateMode::Kind::kSynchronous) {
    return WithRemedy(
        absl::InvalidArgumentError(
            "synchronous rounds are for several trainers, who find the optimizer by its name"),
        "give one");
  }
  PSD_ASSIGN_OR_RETURN(std::vector<OptimizerSpec> specs,
                       CompleteSpecs(worker.state_->runtime->optimizers(), spec, groups));
  auto state = std::make_unique<State>();
  state->worker = worker.state_;
  state->name = name;
  state->spec = specs[0];
  state->settings = settings;
  PSD_ASSIGN_OR_RETURN(state->parts, PartByOwner(specs, groups));
  if (state->parts.empty()) {
    return absl::InvalidArgumentError("an optimizer needs at least one parameter");
  }
  const auto smallest = std::min_element(
      state->parts.begin(), state->parts.end(),
      [](const OptimizerPart& a, const OptimizerPart& b) { return a.owner < b.owner; });
  state->lead = static_cast<size_t>(smallest - state->parts.begin());
  PSD_RETURN_IF_ERROR(state->CreateOnOwners(join));
  return std::unique_ptr<DistributedOptimizer>(new DistributedOptimizer(std::move(state)));
}

absl::StatusOr<OwnOptimizerPart> OwnPartOf(const DistributedOptimizer& optimizer) {
  const std::vector<OptimizerPart>& parts = optimizer.state_->parts;
  for (const OptimizerPart& part : parts) {
    if (part.optimizer.is_owner()) continue;
    return WithRemedy(
        absl::FailedPreconditionError(absl::StrCat("the optimizer has parameters on ", part.owner)),
        "give one whose parameters are all on this worker");
  }
  OwnOptimizerPart own{parts[0].optimizer, {}};
  for (const services::GroupRequest& group : parts[0].groups)
    own.groups.push_back(group.parameters);
  return own;
}

void LossScaleLoaded(DistributedOptimizer& optimizer, double scale) {
  optimizer.state_->loss_scale = scale;
}

DistributedOptimizer::DistributedOptimizer(std::unique_ptr<State> state)
    : state_(std::move(state)) {}

DistributedOptimizer::~DistributedOptimizer() {
  state_->Leave(/*stays=*/false);
}

bool StepsForOthers::ScalesLosses(const DistributedOptimizer& optimizer) {
  return optimizer.state_->settings.loss_scaling.enabled();
}

absl::Status StepsForOthers::RefreshLossScale(DistributedOptimizer& optimizer,
                                              absl::Duration timeout) {
  if (!ScalesLosses(optimizer)) return absl::OkStatus();
  return optimizer.state_->RefreshLossScale(timeout);
}

void StepsForOthers::GiveSeats(DistributedOptimizer& optimizer) {
  optimizer.state_->Leave(/*stays=*/true);
}

const OptimizerSpec& DistributedOptimizer::spec() const {
  return state_->spec;
}

double DistributedOptimizer::LossScale() const {
  return state_->settings.loss_scaling.enabled() ? state_->loss_scale.load() : 1;
}

absl::StatusOr<OptimizerSpec> DistributedOptimizer::Options(size_t group) const {
  PSD_RETURN_IF_ERROR(state_->worker->CheckRunning());
  PSD_ASSIGN_OR_RETURN(optim::GroupOptions options, state_->OptionsOf(state_->lead, group));
  return std::move(options.spec);
}

// The lead decides the new options and gives them a version. The other owners keep the options of
// the highest version, so the order in which changes reach them does not matter. A change that one
// of them refuses is taken back everywhere.
absl::Status DistributedOptimizer::SetOptions(size_t group,
                                              const std::map<std::string, double>& changes) {
  PSD_RETURN_IF_ERROR(state_->worker->CheckRunning());
  PSD_ASSIGN_OR_RETURN(const OptimizerSpec before, Options(group));
  PSD_ASSIGN_OR_RETURN(optim::GroupOptions decided, state_->DecideOptions(group, changes));
  State::FollowersAnswer answer = state_->TellFollowers(group, decided);
  if (answer.newest.version > decided.version) {
    PSD_ASSIGN_OR_RETURN(const bool reminded, state_->Remind(group, answer));
    if (reminded) {
      PSD_ASSIGN_OR_RETURN(decided, state_->DecideOptions(group, changes));
      answer = state_->TellFollowers(group, decided);
    }
  }
  if (!answer.refused_by.has_value()) return answer.status;
  // A follower refuses these options, because it cannot take them with the parameters that it has.
  std::map<std::string, double> former;
  for (const auto& [name, value] : changes) former[name] = before.options.at(name);
  const auto taken_back = state_->DecideOptions(group, former);
  if (taken_back.ok()) state_->TellFollowers(group, *taken_back).status.IgnoreError();
  return answer.status;
}

}  // namespace psd
