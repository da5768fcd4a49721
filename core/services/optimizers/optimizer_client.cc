// Client side of the optimizer service.

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/base/status.h"
#include "core/optim/owner/life_codec.h"
#include "core/rpc/declared_method.h"
#include "core/services/optimizers/optimizer_codec.h"
#include "core/services/optimizers/optimizer_methods.h"
#include "core/services/optimizers/optimizer_service.h"
#include "proto/psd/v1/worker.pb.h"

namespace psd::services {
namespace {

// The pauses between two attempts to deliver a message that an owner must get.
constexpr absl::Duration kFirstPause = absl::Milliseconds(10), kLongestPause = absl::Seconds(5);

}  // namespace

using optim::GroupOptions;
using optim::StepResult;
using rref::RRef;

Future<RRef> OptimizerService::Create(const std::string& owner, const std::string& name,
                                      const std::vector<GroupRequest>& groups,
                                      const optim::OptimizerSettings& settings,
                                      const rpc::CallOptions& options, const PartTerms& terms) {
  std::vector<RRef> parameters;
  for (const GroupRequest& group : groups)
    parameters.insert(parameters.end(), group.parameters.begin(), group.parameters.end());
  return uses_.creations.After<RRef>(
      parameters, options,
      [this, owner, name, groups, settings, terms](const rpc::CallOptions& left) {
        return SendCreate(owner, name, groups, settings, left, terms);
      });
}

Future<RRef> OptimizerService::SendCreate(const std::string& owner, const std::string& name,
                                          const std::vector<GroupRequest>& groups,
                                          const optim::OptimizerSettings& settings,
                                          const rpc::CallOptions& options, const PartTerms& terms) {
  v1::CreateOptimizerRequest message;
  Incarnation incarnation = 0;
  message.set_name(name);
  EncodeSettings(settings, message);
  optim::EncodeLife(terms.life, message);
  message.set_replaced_incarnation(terms.replaced.incarnation);
  message.set_replaced_counter(terms.replaced.counter);
  message.set_unfinished(terms.unfinished);
  message.set_turns_ended_before(uses_.ids.Next().counter);
  for (const GroupRequest& group : groups) {
    message.set_type(group.spec.type);
    v1::OptimizerGroup& wire = *message.add_groups();
    EncodeOptions(group.spec.options, wire);
    for (const RRef& parameter : group.parameters) {
      absl::Status usable = uses_.rrefs.CheckUsable(parameter);
      if (!usable.ok()) return Future<RRef>::Ready(usable);
      wire.add_parameter_incarnations(parameter.value_id().incarnation);
      wire.add_parameter_counters(parameter.value_id().counter);
      incarnation = parameter.body()->owner_incarnation();
    }
  }
  return rpc::Ask(uses_.agent, kOptimizerCreate, {owner, incarnation}, message, options)
      .Then([this, owner](const absl::StatusOr<rpc::Reply>& reply) -> absl::StatusOr<RRef> {
        if (!reply.ok()) return reply.status();
        return uses_.exchange.AdoptReference(owner, *reply);
      });
}

template <typename Result, typename RequestType, typename ReplyType, typename Decode>
Future<Result> OptimizerService::AskOwner(const rpc::Declared<RequestType, ReplyType>& method,
                                          const RRef& optimizer, RequestType message,
                                          const rpc::CallOptions& options, Decode decode) {
  absl::Status usable = uses_.rrefs.CheckUsable(optimizer);
  if (!usable.ok()) return Future<Result>::Ready(usable);
  EncodeOptimizer(optimizer.value_id(), message);
  return rpc::Ask(
             uses_.agent, method,
             {optimizer.owner(), optimizer.body()->owner_incarnation(), /*session_bound=*/true},
             message, options)
      .Then([this, optimizer,
             decode](const absl::StatusOr<ReplyType>& reply) -> absl::StatusOr<Result> {
        // If the session has just ended, the call finds nothing in the next one.
        if (absl::IsNotFound(reply.status()))
          PSD_RETURN_IF_ERROR(uses_.rrefs.CheckUsable(optimizer));
        if (!reply.ok()) return reply.status();
        return decode(*reply);
      });
}

Future<StepResult> OptimizerService::Step(const RRef& optimizer, const StepCall& step,
                                          const rpc::CallOptions& options) {
  v1::StepRequest message;
  EncodeContexts(step.contexts, message);
  message.set_step_incarnation(step.step.incarnation);
  message.set_step_counter(step.step.counter);
  message.set_ended_before(step.ended_before);
  message.set_in_turn(step.in_turn);
  optim::EncodeLifeId(step.life, message);
  EncodeTerms(step.terms, message);
  EncodeSeats(step.seats, message);
  if (step.round.word.number != 0) EncodePlace(step.round, *message.mutable_round());
  return AskOwner<StepResult>(kOptimizerStep, optimizer, std::move(message), options, DecodeResult);
}

Future<PrepareResult> OptimizerService::Prepare(const RRef& optimizer, const StepCall& step,
                                                bool measure, const rpc::CallOptions& options) {
  v1::PrepareRequest message;
  EncodeContexts(step.contexts, message);
  message.set_step_incarnation(step.step.incarnation);
  message.set_step_counter(step.step.counter);
  message.set_ended_before(step.ended_before);
  optim::EncodeLifeId(step.life, message);
  message.set_measure(measure);
  EncodeSeats(step.seats, message);
  if (step.round.word.number != 0) EncodePlace(step.round, *message.mutable_round());
  return AskOwner<PrepareResult>(
      kOptimizerPrepare, optimizer, std::move(message), options, [](const v1::PrepareReply& reply) {
        return PrepareResult{reply.steps_accepted(), reply.sum_of_squares(), reply.loss_scale()};
      });
}

namespace {

v1::TurnRequest EncodeTurn(GlobalId turn) {
  v1::TurnRequest message;
  message.set_turn_incarnation(turn.incarnation);
  message.set_turn_counter(turn.counter);
  return message;
}

// Whether a message that failed may arrive later in the same session.
bool MayArriveLater(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) ||
         absl::IsResourceExhausted(status);
}

}  // namespace

Future<TurnAnswer> OptimizerService::TakeTurn(const RRef& optimizer, const TurnCall& turn,
                                              const rpc::CallOptions& options) {
  v1::TurnRequest message = EncodeTurn(turn.turn);
  message.set_ended_before(turn.ended_before);
  optim::EncodeLifeId(turn.life, message);
  EncodeWishes(turn.wishes, message);
  EncodeSeats(turn.seats, message);
  return AskOwner<TurnAnswer>(kOptimizerTakeTurn, optimizer, std::move(message), options,
                              DecodeTurnReply);
}

template <typename RequestType>
void OptimizerService::SendUntilAnswered(const rpc::Declared<RequestType, Unit>& method,
                                         const RRef& optimizer, const RequestType& message,
                                         absl::Duration pause) {
  rpc::CallOptions options;
  options.timeout = absl::ZeroDuration();  // no timeout: it ends with the session
  AskOwner<Unit>(method, optimizer, message, options, [](Unit unit) {
    return unit;
  }).OnReady([this, method, optimizer, message, pause](const absl::StatusOr<Unit>& reply) {
    const bool session_lives = uses_.rrefs.CheckUsable(optimizer).ok();
    if (!session_lives || !MayArriveLater(reply.status())) return;
    uses_.timers.RunAfter(pause, [this, method, optimizer, message, pause] {
      SendUntilAnswered(method, optimizer, message, std::min(2 * pause, kLongestPause));
    });
  });
}

void OptimizerService::EndTurn(const RRef& optimizer, GlobalId turn, bool applied) {
  v1::TurnRequest message = EncodeTurn(turn);
  message.set_applied(applied);
  SendUntilAnswered(kOptimizerEndTurn, optimizer, message, kFirstPause);
}

void OptimizerService::Leave(const RRef& optimizer, bool stays) {
  v1::LeaveOptimizerRequest message;
  message.set_stays(stays);
  message.set_before(uses_.ids.Next().counter);
  SendUntilAnswered(kOptimizerLeave, optimizer, message, kFirstPause);
}

Future<GroupOptions> OptimizerService::Options(const RRef& optimizer, size_t group,
                                               const rpc::CallOptions& options) {
  v1::OptionsRequest message;
  message.set_group(static_cast<uint32_t>(group));
  return AskOwner<GroupOptions>(kOptimizerOptions, optimizer, std::move(message), options,
                                DecodeGroupOptions);
}

Future<GroupOptions> OptimizerService::SetOptions(const RRef& optimizer, size_t group,
                                                  const std::map<std::string, double>& changes,
                                                  uint64_t version, GlobalId life,
                                                  const rpc::CallOptions& options) {
  v1::SetOptionsRequest message;
  message.set_group(static_cast<uint32_t>(group));
  EncodeOptions(changes, message);
  message.set_version(version);
  optim::EncodeLifeId(life, message);
  return AskOwner<GroupOptions>(kOptimizerSetOptions, optimizer, std::move(message), options,
                                DecodeGroupOptions);
}

}  // namespace psd::services
