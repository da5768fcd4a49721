#include "core/services/optimizers/optimizer_service.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "core/base/remedy.h"
#include "core/base/status.h"
#include "core/change/change.h"
#include "core/optim/owner/life_codec.h"
#include "core/rpc/declared_method.h"
#include "core/rpc/draining.h"
#include "core/rpc/message_io.h"
#include "core/rref/authorize.h"
#include "core/services/optimizers/collected_gradients.h"
#include "core/services/optimizers/optimizer_codec.h"
#include "core/services/optimizers/optimizer_methods.h"
#include "core/store/failure.h"
#include "proto/psd/v1/worker.pb.h"

namespace psd::services {
namespace {

using optim::OptimizerSettings;
using optim::OptimizerSpec;
using optim::OwnerOptimizer;
using optim::ParameterGroup;
using optim::StepPlan;
using store::EntryPtr;

using OptimizerPtr = std::shared_ptr<OwnerOptimizer>;  // shared with the store and running calls

// Returns a text of everything that all creators of an optimizer must give alike. The names of a
// group's parameters are sorted, because loading does not keep their order.
std::string Agreement(const std::vector<ParameterGroup>& groups,
                      const OptimizerSettings& settings) {
  std::string text;
  for (const ParameterGroup& group : groups) {
    std::vector<std::string> names;
    for (const EntryPtr& parameter : group.parameters)
      names.push_back(parameter->name.empty() ? parameter->id.ToString() : parameter->name);
    std::sort(names.begin(), names.end());
    absl::StrAppend(&text, text.empty() ? "" : "; ", group.spec.ToString(), " over ",
                    absl::StrJoin(names, " "));
  }
  return absl::StrCat(text, settings.ToString());
}

// Returns the groups with all options, defaults included.
absl::StatusOr<std::vector<ParameterGroup>> DecodeGroups(const OptimizerService::Uses& uses,
                                                         const v1::CreateOptimizerRequest& wire) {
  std::vector<ParameterGroup> groups;
  for (const v1::OptimizerGroup& each : wire.groups()) {
    ParameterGroup& group = groups.emplace_back();
    OptimizerSpec spec{wire.type(), {}};
    PSD_ASSIGN_OR_RETURN(spec.options, DecodeOptions(each.option_names(), each.option_values()));
    PSD_ASSIGN_OR_RETURN(auto function, uses.optimizers.Create(spec));
    group.spec = function->spec();
    PSD_ASSIGN_OR_RETURN(std::vector<GlobalId> ids,
                         DecodeIds(each.parameter_incarnations(), each.parameter_counters()));
    for (const GlobalId& id : ids) {
      PSD_ASSIGN_OR_RETURN(EntryPtr entry, uses.store.Get(id));
      group.parameters.push_back(std::move(entry));
    }
  }
  return groups;
}

absl::StatusOr<OptimizerPtr> OptimizerIn(const store::Entry& entry) {
  const auto* object = entry.value.As<std::shared_ptr<store::Object>>();
  auto optimizer = object == nullptr ? nullptr : std::dynamic_pointer_cast<OwnerOptimizer>(*object);
  if (optimizer == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(entry.name.empty() ? entry.id.ToString() : entry.name, " is ",
                     entry.KindName(), ", not an optimizer"));
  }
  return optimizer;
}

absl::StatusOr<OptimizerPtr> FindOptimizer(store::Store& store, GlobalId id) {
  PSD_ASSIGN_OR_RETURN(EntryPtr entry, store.Get(id));
  return OptimizerIn(*entry);
}

// Returns the optimizer that a request names, if the caller has the right `right` to it. `Message`
// has the id of an optimizer.
template <typename Message>
absl::StatusOr<OptimizerPtr> FindOptimizer(const OptimizerService::Uses& uses,
                                           const rpc::ServerCall& call, rpc::Right right,
                                           const Message& message) {
  PSD_ASSIGN_OR_RETURN(EntryPtr entry, uses.store.Get(DecodeOptimizer(message)));
  PSD_RETURN_IF_ERROR(rref::Authorize(uses.agent.access(), rpc::AskerOf(call), right, *entry));
  return OptimizerIn(*entry);
}

// Returns the life of the part that a creation drops first, if any.
GlobalId ReplacedBy(const v1::CreateOptimizerRequest& request) {
  return {request.replaced_incarnation(), request.replaced_counter()};
}

// Checks the rights for everything that a creation does: it steps the parameters of `groups`, may
// drop the part that has the name, and may begin a load of the part. Then checks that the groups
// could be made.
absl::Status AuthorizeCreation(const OptimizerService::Uses& uses, const rpc::ServerCall& call,
                               const v1::CreateOptimizerRequest& request,
                               absl::Span<const ParameterGroup> groups) {
  rpc::Access& access = uses.agent.access();
  const rpc::Asker asker = rpc::AskerOf(call);
  PSD_RETURN_IF_ERROR(access.Authorize(asker, rpc::Right::kCreate, request.name()));
  if (!ReplacedBy(request).IsNone())
    PSD_RETURN_IF_ERROR(access.Authorize(asker, rpc::Right::kDrop, request.name()));
  if (request.unfinished())
    PSD_RETURN_IF_ERROR(access.Authorize(asker, rpc::Right::kLoad, request.name()));
  for (const ParameterGroup& group : groups)
    PSD_RETURN_IF_ERROR(rref::Authorize(access, asker, rpc::Right::kStep, group.parameters));
  for (const ParameterGroup& group : groups)
    for (const EntryPtr& each : group.parameters)
      PSD_RETURN_IF_ERROR(store::FailureOf(each->value));
  return absl::OkStatus();
}

// The gradients that contexts have collected on this worker for an optimizer's parameters. The same
// contexts may also have gradients for other optimizers.
struct Collected {
  OptimizerPtr optimizer;
  std::vector<CollectedGradients> contexts;
  int64_t elements = 0;    // the most elements that are read or written to plan the step
  bool on_device = false;  // some of the gradients are on devices

  // Returns the checked sum over all contexts. May be called once.
  absl::StatusOr<StepPlan> Plan() {
    StepPlan sum;
    for (size_t i = 0; i < contexts.size(); ++i) {
      PSD_ASSIGN_OR_RETURN(StepPlan plan, optimizer->table().Plan(std::move(contexts[i].gradients),
                                                                  std::move(contexts[i].leaves)));
      if (i == 0) {
        sum = std::move(plan);
      } else {
        PSD_ASSIGN_OR_RETURN(sum, optimizer->table().Sum(std::move(sum), std::move(plan)));
      }
    }
    return sum;
  }
};

// Whether the carrier's thread may plan the step. It never waits for a device: neither for one that
// has a parameter, nor for one that has a gradient of a parameter on the host.
bool IsLight(const Collected& collected) {
  return collected.elements <= optim::kInlineElements && !collected.on_device &&
         !collected.optimizer->has_devices();
}

// Returns the fields that a step and a measurement have in common.
optim::StepRequest NewRequest(rpc::ServerCall& call, OwnerOptimizer& optimizer, GlobalId step_id,
                              GlobalId life) {
  optim::StepRequest request;
  request.step_id = step_id;
  request.life = life;
  request.ticket = optimizer.NewTicket();
  request.member = {rpc::SessionOf(call), call.caller().name,
                    rpc::LabelOf(WorkLabel::Kind::kOwn, call).flow};
  return request;
}

absl::Status RunPrepare(const rpc::Answer<v1::PrepareReply>& answer, GlobalId step_id,
                        const v1::PrepareRequest& message, optim::RoundPlace round,
                        Collected& collected) {
  PSD_ASSIGN_OR_RETURN(StepPlan plan, collected.Plan());
  const OptimizerPtr& optimizer = collected.optimizer;
  PSD_RETURN_IF_ERROR(optimizer->Check(plan));
  auto measured = [answer, optimizer](absl::StatusOr<double> sum_of_squares) {
    if (!sum_of_squares.ok()) return answer(sum_of_squares.status());
    const OwnerOptimizer::Stats stats = optimizer->stats();
    v1::PrepareReply reply;
    // If a step under way fails, so does the one that is prepared.
    reply.set_steps_accepted(stats.steps + stats.under_way);
    reply.set_loss_scale(stats.loss_scale);
    reply.set_sum_of_squares(*sum_of_squares);
    answer(std::move(reply));
  };
  if (!message.measure()) {
    measured(0);
    return absl::OkStatus();
  }
  optim::StepRequest request =
      NewRequest(*answer.call(), *optimizer, step_id, optim::DecodeLifeId(message));
  const uint64_t ticket = request.ticket;
  request.ended_before = message.ended_before();
  request.seats = DecodeSeats(message);
  request.round = std::move(round);
  request.plan = std::move(plan);
  optimizer->Measure(std::move(request), std::move(measured));
  if (optimizer->waits())
    answer.call()->OnCancel([optimizer, ticket] { optimizer->Withdraw(ticket); });
  return absl::OkStatus();
}

absl::Status RunStep(const rpc::Answer<v1::StepReply>& answer, GlobalId step_id,
                     const v1::StepRequest& message, const optim::StepTerms& terms,
                     optim::RoundPlace round, Collected& collected) {
  PSD_ASSIGN_OR_RETURN(StepPlan plan, collected.Plan());
  const OptimizerPtr& optimizer = collected.optimizer;
  optim::StepRequest step =
      NewRequest(*answer.call(), *optimizer, step_id, optim::DecodeLifeId(message));
  const uint64_t ticket = step.ticket;
  step.ended_before = message.ended_before();
  step.in_turn = message.in_turn();
  step.seats = DecodeSeats(message);
  step.round = std::move(round);
  step.plan = std::move(plan);
  step.terms = terms;
  step.begin_apply = [call = answer.call()] { return call->BeginApply(); };
  step.done = [answer](absl::StatusOr<optim::StepResult> result) {
    if (!result.ok()) return answer(std::move(result).status());
    answer(EncodeResult(*result));
  };
  optimizer->Step(std::move(step));
  if (optimizer->waits())
    answer.call()->OnCancel([optimizer, ticket] { optimizer->Withdraw(ticket); });
  return absl::OkStatus();
}

// Checks an id that its trainer has drawn: a trainer numbers only its own steps and turns.
absl::StatusOr<GlobalId> CheckOwn(const rpc::ServerCall& call, const char* what, GlobalId id) {
  if (id.incarnation == call.caller().incarnation) return id;
  return absl::InvalidArgumentError(absl::StrCat(
      what, " ", id.ToString(), " was not numbered by its caller, whose incarnation is ",
      IncarnationToString(call.caller().incarnation)));
}

// Returns the id of the step. `Message` is a StepRequest or a PrepareRequest.
template <typename Message>
absl::StatusOr<GlobalId> DecodeStepId(const rpc::ServerCall& call, const Message& message) {
  return CheckOwn(call, "step", {message.step_incarnation(), message.step_counter()});
}

// Returns the place in a named round of a StepRequest or a PrepareRequest, if it has one.
template <typename Message>
absl::StatusOr<optim::RoundPlace> DecodeRound(const rpc::ServerCall& call, const Message& message) {
  if (!message.has_round()) return optim::RoundPlace{};
  return DecodePlace(call.caller().incarnation, message.round());
}

absl::StatusOr<GlobalId> DecodeTurnId(const rpc::ServerCall& call, const v1::TurnRequest& message) {
  return CheckOwn(call, "turn", {message.turn_incarnation(), message.turn_counter()});
}

absl::StatusOr<Collected> Collect(const OptimizerService::Uses& uses, OptimizerPtr optimizer,
                                  absl::Span<const GlobalId> contexts) {
  Collected collected;
  collected.optimizer = std::move(optimizer);
  const optim::ParameterTable& table = collected.optimizer->table();
  for (const GlobalId& id : contexts) {
    PSD_ASSIGN_OR_RETURN(auto context, uses.autograd.Find(id));
    const CollectedGradients& picked =
        collected.contexts.emplace_back(PickGradients(context->Gradients(), table));
    collected.elements += picked.elements;
    collected.on_device |= picked.on_device;
  }
  return collected;
}

// Collects the gradients for a request. `Message` is a StepRequest or a PrepareRequest.
template <typename Message>
absl::StatusOr<Collected> Collect(const OptimizerService::Uses& uses, const rpc::ServerCall& call,
                                  const Message& message) {
  PSD_ASSIGN_OR_RETURN(OptimizerPtr optimizer,
                       FindOptimizer(uses, call, rpc::Right::kStep, message));
  // This check only gives an early answer: the optimizer checks again when it applies the step.
  PSD_RETURN_IF_ERROR(optim::CheckLife(optim::DecodeLifeId(message), optimizer->life()));
  PSD_ASSIGN_OR_RETURN(std::vector<GlobalId> ids,
                       DecodeIds(message.context_incarnations(), message.context_counters()));
  return Collect(uses, std::move(optimizer), ids);
}

}  // namespace

OptimizerService::OptimizerService(Uses uses) : uses_(std::move(uses)) {
  rpc::Serve(uses_.agent, kOptimizerCreate, this, &OptimizerService::ServeCreate);
  rpc::Serve(uses_.agent, kOptimizerPart, this, &OptimizerService::ServePart);
  rpc::Serve(uses_.agent, kOptimizerPrepare, this, &OptimizerService::ServePrepare);
  rpc::Serve(uses_.agent, kOptimizerStep, this, &OptimizerService::ServeStep);
  rpc::Serve(uses_.agent, kOptimizerTakeTurn, this, &OptimizerService::ServeTakeTurn);
  rpc::Serve(uses_.agent, kOptimizerEndTurn, this, &OptimizerService::ServeEndTurn);
  rpc::Serve(uses_.agent, kOptimizerOptions, this, &OptimizerService::ServeOptions);
  rpc::Serve(uses_.agent, kOptimizerSetOptions, this, &OptimizerService::ServeSetOptions);
  rpc::Serve(uses_.agent, kOptimizerLeave, this, &OptimizerService::ServeLeave);
  uses_.agent.OnSessionEnded([this](const rpc::PeerInfo& peer, uint64_t epoch) {
    EndSession({peer.incarnation, epoch});
  });
  uses_.agent.OnDraining([this] { CloseGates(); });
}

absl::Status OptimizerService::ServeCreate(const rpc::Answer<rpc::Contents>& answer,
                                           v1::CreateOptimizerRequest request) {
  PSD_ASSIGN_OR_RETURN(std::vector<ParameterGroup> groups, DecodeGroups(uses_, request));
  if (std::all_of(groups.begin(), groups.end(),
                  [](const ParameterGroup& group) { return group.parameters.empty(); })) {
    return WithRemedy(absl::InvalidArgumentError(
                          absl::StrCat("optimizer ", request.name(), ": it has no parameters")),
                      "name at least one");
  }
  PSD_RETURN_IF_ERROR(AuthorizeCreation(uses_, *answer.call(), request, groups));
  const OptimizerSettings settings = DecodeSettings(request);
  // This check comes before a part is dropped to make room for the new one.
  PSD_RETURN_IF_ERROR(optim::CheckGroups(groups, settings, uses_.optimizers));
  PSD_ASSIGN_OR_RETURN(optim::OptimizerLife life, optim::DecodeLife(request));
  const bool loads = request.unfinished();
  if (loads ? !life.owners.empty() : life.owners.empty() != life.id.IsNone())
    return absl::InvalidArgumentError("optimizer.create: a life without owners or id");
  if (!life.owners.empty()) {
    PSD_RETURN_IF_ERROR(
        optim::CheckLifeHere(life, {uses_.agent.self().name, uses_.agent.self().incarnation}));
  }
  const GlobalId expected = life.id;
  PSD_RETURN_IF_ERROR(rpc::BeginApply(*answer.call()));
  DropPart(request.name(), ReplacedBy(request));
  life = FirstLife(request, std::move(life));
  std::string agreement = Agreement(groups, settings);
  const Future<EntryPtr> created = uses_.changes.Apply(
      change::CreateOptimizer{
          {}, request.name(), std::move(agreement), std::move(groups), settings, life},
      [this](const OptimizerPtr& made) { Remember(made); });
  if (request.name().empty()) {
    PSD_ASSIGN_OR_RETURN(const EntryPtr entry, created.Wait());
    answer(uses_.exchange.ReferenceReply(*answer.call(), entry));
    return absl::OkStatus();
  }
  created.OnReady([this, answer, expected, life,
                   before = request.turns_ended_before()](const absl::StatusOr<EntryPtr>& entry) {
    if (!entry.ok()) return answer(entry.status());
    absl::StatusOr<rpc::Contents> reply =
        AnswerCreation(*answer.call(), *entry, expected, life, before);
    if (absl::IsNotFound(reply.status())) {
      reply = WithRemedy(
          absl::AbortedError(absl::StrCat((*entry)->Label(), " was dropped while it was created")),
          "create it again");
    }
    answer(std::move(reply));
  });
  return absl::OkStatus();
}

absl::StatusOr<rpc::Contents> OptimizerService::AnswerCreation(rpc::ServerCall& call,
                                                               const EntryPtr& entry,
                                                               GlobalId expected,
                                                               const optim::OptimizerLife& life,
                                                               uint64_t turns_ended_before) {
  PSD_ASSIGN_OR_RETURN(OptimizerPtr optimizer, FindOptimizer(uses_.store, entry->id));
  if (life.stage == optim::LifeStage::kLoading) PSD_RETURN_IF_ERROR(optimizer->SetLife(life));
  if (!expected.IsNone() && expected != optimizer->life().id)
    return absl::AbortedError(
        absl::StrCat(entry->Label(), " is of another life than was asked for"));
  // If the session ended before, nobody would notice its end any more.
  if (!call.cancelled()) optimizer->Join(rpc::SessionOf(call), turns_ended_before);
  return uses_.exchange.ReferenceReply(call, entry);
}

optim::OptimizerLife OptimizerService::FirstLife(const v1::CreateOptimizerRequest& request,
                                                 optim::OptimizerLife given) {
  const bool alone = given.id.IsNone() && !request.unfinished();
  if (given.id.IsNone()) given.id = uses_.ids.Next();
  if (request.unfinished()) given.stage = optim::LifeStage::kLoading;
  if (alone) given.owners.push_back({uses_.agent.self().name, uses_.agent.self().incarnation});
  return given;
}

void OptimizerService::DropPart(const std::string& name, GlobalId replaced) {
  if (replaced.IsNone()) return;
  auto entry = uses_.store.Lookup(name);
  if (!entry.ok()) return;
  auto optimizer = FindOptimizer(uses_.store, (*entry)->id);
  if (!optimizer.ok() || (*optimizer)->life().id != replaced) return;
  // If another creator has replaced the part meanwhile, this fails and the new part stays.
  uses_.changes.Drop(uses_.rrefs, name, (*entry)->id).IgnoreError();
  uses_.agent.access().NameDropped();
}

absl::Status OptimizerService::ServePrepare(const rpc::Answer<v1::PrepareReply>& answer,
                                            v1::PrepareRequest request) {
  PSD_ASSIGN_OR_RETURN(Collected collected, Collect(uses_, *answer.call(), request));
  GlobalId step;  // needed for a measurement only, which may wait for other trainers
  if (request.measure()) {
    PSD_ASSIGN_OR_RETURN(step, DecodeStepId(*answer.call(), request));
  }
  PSD_ASSIGN_OR_RETURN(optim::RoundPlace round, DecodeRound(*answer.call(), request));
  const bool light = IsLight(collected);
  rpc::RunBySize(uses_.executor, light, answer,
                 [answer, step, message = std::move(request), round = std::move(round),
                  collected = std::move(collected)]() mutable {
                   return RunPrepare(answer, step, message, std::move(round), collected);
                 });
  return absl::OkStatus();
}

absl::Status OptimizerService::ServeStep(const rpc::Answer<v1::StepReply>& answer,
                                         v1::StepRequest request) {
  PSD_ASSIGN_OR_RETURN(optim::StepTerms terms, DecodeTerms(request));
  PSD_ASSIGN_OR_RETURN(Collected collected, Collect(uses_, *answer.call(), request));
  PSD_ASSIGN_OR_RETURN(GlobalId step, DecodeStepId(*answer.call(), request));
  PSD_ASSIGN_OR_RETURN(optim::RoundPlace round, DecodeRound(*answer.call(), request));
  const bool light = IsLight(collected);
  rpc::RunBySize(uses_.executor, light, answer,
                 [answer, step, terms, message = std::move(request), round = std::move(round),
                  collected = std::move(collected)]() mutable {
                   return RunStep(answer, step, message, terms, std::move(round), collected);
                 });
  return absl::OkStatus();
}

void OptimizerService::StepHere(const rpc::Asker& asker, const std::string& name,
                                const StepCall& step, optim::Member member,
                                absl::AnyInvocable<bool()> begin_apply,
                                absl::AnyInvocable<void(absl::StatusOr<optim::StepResult>)> done) {
  auto entry = rref::FindNamed(uses_.agent.access(), uses_.store, asker, rpc::Right::kStep, name);
  if (!entry.ok()) return done(entry.status());
  auto found = OptimizerIn(**entry);
  if (!found.ok()) return done(found.status());
  absl::Status allowed = CheckStepHere(name, **found);
  if (allowed.ok()) allowed = optim::CheckLife(step.life, (*found)->life());
  if (!allowed.ok()) return done(std::move(allowed));
  auto collected = Collect(uses_, *found, step.contexts);
  if (!collected.ok()) return done(collected.status());
  absl::StatusOr<StepPlan> plan = collected->Plan();
  if (!plan.ok()) return done(plan.status());
  optim::StepRequest request;
  request.step_id = step.step;
  request.ended_before = step.ended_before;
  request.life = step.life;
  request.member = std::move(member);
  request.plan = *std::move(plan);
  request.terms = step.terms;
  request.seats = step.seats;
  request.begin_apply = std::move(begin_apply);
  request.done = std::move(done);
  (*found)->Step(std::move(request));
}

absl::Status OptimizerService::ServeTakeTurn(const rpc::Answer<v1::TurnReply>& answer,
                                             v1::TurnRequest request) {
  PSD_ASSIGN_OR_RETURN(OptimizerPtr optimizer,
                       FindOptimizer(uses_, *answer.call(), rpc::Right::kStep, request));
  PSD_ASSIGN_OR_RETURN(GlobalId id, DecodeTurnId(*answer.call(), request));
  PSD_ASSIGN_OR_RETURN(TurnWishes wishes, DecodeWishes(request));
  optim::StepRequest turn =
      NewRequest(*answer.call(), *optimizer, id, optim::DecodeLifeId(request));
  const uint64_t ticket = turn.ticket;
  turn.ended_before = request.ended_before();
  turn.terms = wishes.terms;
  turn.clip_norm = wishes.clip_norm;
  turn.measures = wishes.measures;
  turn.seats = DecodeSeats(request);
  turn.done = [answer](const absl::StatusOr<optim::StepResult>& result) {
    if (!result.ok()) return answer(result.status());
    answer(EncodeTurnReply(*result));
  };
  optimizer->TakeTurn(std::move(turn));
  answer.call()->OnCancel([optimizer, ticket] { optimizer->Withdraw(ticket); });
  return absl::OkStatus();
}

absl::Status OptimizerService::ServeEndTurn(const rpc::CallPtr& call, v1::TurnRequest request) {
  PSD_ASSIGN_OR_RETURN(OptimizerPtr optimizer,
                       FindOptimizer(uses_.store, DecodeOptimizer(request)));
  PSD_ASSIGN_OR_RETURN(GlobalId turn, DecodeTurnId(*call, request));
  PSD_RETURN_IF_ERROR(rpc::BeginApply(*call));
  optimizer->EndTurn(rpc::SessionOf(*call), turn, request.applied());
  return absl::OkStatus();
}

absl::StatusOr<v1::OptionsReply> OptimizerService::ServeOptions(const rpc::CallPtr& call,
                                                                v1::OptionsRequest request) {
  PSD_ASSIGN_OR_RETURN(OptimizerPtr optimizer,
                       FindOptimizer(uses_, *call, rpc::Right::kRead, request));
  PSD_ASSIGN_OR_RETURN(optim::GroupOptions options, optimizer->options(request.group()));
  return EncodeGroupOptions(options);
}

absl::Status OptimizerService::ServeSetOptions(const rpc::Answer<v1::OptionsReply>& answer,
                                               v1::SetOptionsRequest request) {
  PSD_ASSIGN_OR_RETURN(OptimizerPtr optimizer,
                       FindOptimizer(uses_, *answer.call(), rpc::Right::kWrite, request));
  PSD_ASSIGN_OR_RETURN(auto changes,
                       DecodeOptions(request.option_names(), request.option_values()));
  PSD_RETURN_IF_ERROR(rpc::BeginApply(*answer.call()));
  optimizer->SetOptions(request.group(), std::move(changes), request.version(),
                        optim::DecodeLifeId(request),
                        [answer](absl::StatusOr<optim::GroupOptions> changed) {
                          if (!changed.ok()) return answer(std::move(changed).status());
                          answer(EncodeGroupOptions(*changed));
                        });
  return absl::OkStatus();
}

// ---- sessions and members

void OptimizerService::CloseGates() {
  {
    MutexLock lock(mutex_);
    gates_closed_ = true;
  }
  const absl::Status why = rpc::DrainingError(uses_.agent.self().name, "the step");
  for (const OptimizerPtr& each : Optimizers()) each->CloseGate(why);
}

void OptimizerService::Remember(const std::shared_ptr<OwnerOptimizer>& optimizer) {
  bool closed = false;
  {
    MutexLock lock(mutex_);
    closed = gates_closed_;
    AddOptimizer(optimizer);
  }
  if (closed) optimizer->CloseGate(rpc::DrainingError(uses_.agent.self().name, "the step"));
}

void OptimizerService::AddOptimizer(const std::shared_ptr<OwnerOptimizer>& optimizer) {
  optimizers_.push_back(optimizer);
  if (optimizers_.size() < next_sweep_) return;
  optimizers_.erase(
      std::remove_if(optimizers_.begin(), optimizers_.end(),
                     [](const std::weak_ptr<OwnerOptimizer>& each) { return each.expired(); }),
      optimizers_.end());
  next_sweep_ = 2 * optimizers_.size() + 64;
}

absl::StatusOr<GlobalId> OptimizerService::LifeHere(const rref::RRef& optimizer) const {
  PSD_ASSIGN_OR_RETURN(const store::EntryPtr entry, optimizer.local_entry());
  PSD_ASSIGN_OR_RETURN(const OptimizerPtr found, OptimizerIn(*entry));
  return found->life().id;
}

bool OptimizerService::LivesHere(const std::string& name, GlobalId life) const {
  const auto entry = uses_.store.Lookup(name);
  if (!entry.ok()) return false;
  const auto found = OptimizerIn(**entry);
  return found.ok() && optim::CheckLife(life, (*found)->life()).ok();
}

std::vector<OptimizerPtr> OptimizerService::Optimizers() const {
  std::vector<OptimizerPtr> alive;
  MutexLock lock(mutex_);
  for (const std::weak_ptr<OwnerOptimizer>& each : optimizers_)
    if (OptimizerPtr optimizer = each.lock(); optimizer != nullptr) alive.push_back(optimizer);
  return alive;
}

void OptimizerService::EndSession(GlobalId session) {
  for (const OptimizerPtr& each : Optimizers()) each->EndSession(session);
}

void OptimizerService::GiveUp(GlobalId session, uint64_t before) {
  for (const OptimizerPtr& each : Optimizers()) each->GiveUp(session.incarnation, before);
}

absl::Status OptimizerService::ServeLeave(const rpc::CallPtr& call,
                                          v1::LeaveOptimizerRequest request) {
  PSD_ASSIGN_OR_RETURN(OptimizerPtr optimizer,
                       FindOptimizer(uses_.store, DecodeOptimizer(request)));
  PSD_RETURN_IF_ERROR(rpc::BeginApply(*call));
  if (request.stays()) {
    optimizer->GiveSeats(rpc::SessionOf(*call), request.before());
  } else {
    optimizer->Leave(rpc::SessionOf(*call), request.before());
  }
  return absl::OkStatus();
}

}  // namespace psd::services
