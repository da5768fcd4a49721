#include "core/services/optimizers/optimizer_codec.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace psd::services {

using optim::OptimizerSettings;
using optim::Schedule;
using optim::StepResult;
using optim::StepTerms;
using optim::UpdateMode;

void EncodeSettings(const OptimizerSettings& settings, v1::CreateOptimizerRequest& message) {
  if (const Schedule& schedule = settings.schedule; !schedule.IsConstant()) {
    v1::ScheduleSettings& wire = *message.mutable_schedule();
    wire.set_kind(static_cast<uint32_t>(schedule.kind));
    wire.set_period(schedule.period);
    wire.set_gamma(schedule.gamma);
    wire.set_lowest(schedule.lowest);
    wire.set_rise(schedule.rise);
    wire.set_initial_divisor(schedule.initial_divisor);
    wire.set_final_divisor(schedule.final_divisor);
    wire.set_linear(schedule.linear);
    wire.set_warmup_steps(schedule.warmup_steps);
    wire.set_warmup_start(schedule.warmup_start);
    if (schedule.cycle_momentum) {
      wire.set_cycle_momentum(true);
      wire.set_lowest_momentum(schedule.lowest_momentum);
      wire.set_highest_momentum(schedule.highest_momentum);
    }
  }
  if (settings.loss_scaling.enabled()) {
    v1::LossScalingSettings& wire = *message.mutable_loss_scaling();
    wire.set_initial(settings.loss_scaling.initial);
    wire.set_growth_factor(settings.loss_scaling.growth_factor);
    wire.set_backoff_factor(settings.loss_scaling.backoff_factor);
    wire.set_growth_interval(settings.loss_scaling.growth_interval);
  }
  if (settings.mode.kind != UpdateMode::Kind::kAsynchronous) {
    v1::ModeSettings& wire = *message.mutable_mode();
    wire.set_kind(static_cast<uint32_t>(settings.mode.kind));
    wire.set_trainers(settings.mode.trainers);
    wire.set_reduction(static_cast<uint32_t>(settings.mode.reduction));
    wire.set_staleness(settings.mode.staleness);
    wire.set_when_stale(static_cast<uint32_t>(settings.mode.when_stale));
    wire.set_allow_unknown_versions(settings.mode.allow_unknown_versions);
  }
}

namespace {

// Returns the enumerator with this number. A number without an enumerator becomes 0, which
// OptimizerSettings::Check refuses.
template <typename Enum>
Enum DecodeEnum(uint32_t number) {
  return static_cast<Enum>(number <= 255 ? number : 0);
}

// For any message with gradient_scale, gradient_limit and loss_scale.
template <typename Message>
StepTerms TermsIn(const Message& message) {
  StepTerms terms;
  if (message.has_gradient_scale()) terms.gradient_scale = message.gradient_scale();
  if (message.has_gradient_limit()) terms.gradient_limit = message.gradient_limit();
  terms.loss_scale = message.loss_scale();
  return terms;
}

absl::Status CheckTerms(const StepTerms& terms) {
  if (std::isfinite(terms.gradient_scale) && terms.gradient_limit >= 0 &&
      std::isfinite(terms.loss_scale))
    return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "a step with gradient scale ", terms.gradient_scale, ", limit ", terms.gradient_limit,
      " and loss scale ", terms.loss_scale, ": scales must be finite, the limit at least 0"));
}

}  // namespace

OptimizerSettings DecodeSettings(const v1::CreateOptimizerRequest& message) {
  OptimizerSettings settings;
  if (message.has_schedule()) {
    const v1::ScheduleSettings& wire = message.schedule();
    Schedule& schedule = settings.schedule;
    schedule.kind = DecodeEnum<Schedule::Kind>(wire.kind());
    schedule.period = wire.period();
    schedule.gamma = wire.gamma();
    schedule.lowest = wire.lowest();
    schedule.rise = wire.rise();
    schedule.initial_divisor = wire.initial_divisor();
    schedule.final_divisor = wire.final_divisor();
    schedule.linear = wire.linear();
    schedule.warmup_steps = wire.warmup_steps();
    schedule.warmup_start = wire.warmup_start();
    if (wire.cycle_momentum()) {
      schedule.cycle_momentum = true;
      schedule.lowest_momentum = wire.lowest_momentum();
      schedule.highest_momentum = wire.highest_momentum();
    }
  }
  if (message.has_loss_scaling()) {
    const v1::LossScalingSettings& wire = message.loss_scaling();
    settings.loss_scaling = {wire.initial(), wire.growth_factor(), wire.backoff_factor(),
                             wire.growth_interval()};
  }
  if (message.has_mode()) {
    const v1::ModeSettings& wire = message.mode();
    settings.mode.kind = DecodeEnum<UpdateMode::Kind>(wire.kind());
    settings.mode.trainers = wire.trainers();
    settings.mode.reduction = DecodeEnum<UpdateMode::Reduction>(wire.reduction());
    settings.mode.staleness = wire.staleness();
    settings.mode.when_stale = DecodeEnum<UpdateMode::WhenStale>(wire.when_stale());
    settings.mode.allow_unknown_versions = wire.allow_unknown_versions();
  }
  return settings;
}

void EncodeTerms(const StepTerms& terms, v1::StepRequest& message) {
  if (terms.gradient_scale != 1) message.set_gradient_scale(terms.gradient_scale);
  if (std::isfinite(terms.gradient_limit)) message.set_gradient_limit(terms.gradient_limit);
  if (terms.schedule_step.has_value()) message.set_schedule_step(*terms.schedule_step);
  message.set_loss_scale(terms.loss_scale);
  message.set_overflow(terms.overflow);
}

absl::StatusOr<StepTerms> DecodeTerms(const v1::StepRequest& message) {
  StepTerms terms = TermsIn(message);
  if (message.has_schedule_step()) terms.schedule_step = message.schedule_step();
  terms.overflow = message.overflow();
  PSD_RETURN_IF_ERROR(CheckTerms(terms));
  return terms;
}

void EncodePlace(const optim::RoundPlace& place, v1::RoundPlace& message) {
  message.set_number(place.word.number);
  for (const GlobalId& turn : place.word.members) {
    message.add_member_incarnations(turn.incarnation);
    message.add_member_counters(turn.counter);
  }
  message.set_turn_counter(place.turn.counter);
  message.set_turns_ended_before(place.turns_ended_before);
}

absl::StatusOr<optim::RoundPlace> DecodePlace(Incarnation trainer, const v1::RoundPlace& message) {
  optim::RoundPlace place;
  place.turn = {trainer, message.turn_counter()};
  place.turns_ended_before = message.turns_ended_before();
  place.word.number = message.number();
  if (place.word.number == 0)
    return absl::InvalidArgumentError("a place in a round without a number");
  PSD_ASSIGN_OR_RETURN(place.word.members,
                       DecodeIds(message.member_incarnations(), message.member_counters()));
  return place;
}

void EncodeWishes(const TurnWishes& wishes, v1::TurnRequest& message) {
  if (wishes.terms.gradient_scale != 1) message.set_gradient_scale(wishes.terms.gradient_scale);
  if (std::isfinite(wishes.terms.gradient_limit))
    message.set_gradient_limit(wishes.terms.gradient_limit);
  message.set_loss_scale(wishes.terms.loss_scale);
  if (std::isfinite(wishes.clip_norm)) message.set_clip_norm(wishes.clip_norm);
  message.set_measures(wishes.measures);
}

absl::StatusOr<TurnWishes> DecodeWishes(const v1::TurnRequest& message) {
  TurnWishes wishes;
  wishes.terms = TermsIn(message);
  PSD_RETURN_IF_ERROR(CheckTerms(wishes.terms));
  if (message.has_clip_norm()) wishes.clip_norm = message.clip_norm();
  if (!(wishes.clip_norm >= 0)) {
    return absl::InvalidArgumentError(absl::StrCat("a turn that clips by the norm ",
                                                   wishes.clip_norm, ": it must be at least 0"));
  }
  wishes.measures = message.measures();
  return wishes;
}

v1::TurnReply EncodeTurnReply(const StepResult& result) {
  v1::TurnReply message;
  message.set_steps_accepted(result.steps_accepted);
  message.set_round(result.round.number);
  for (const GlobalId& turn : result.round.members) {
    message.add_member_incarnations(turn.incarnation);
    message.add_member_counters(turn.counter);
  }
  return message;
}

absl::StatusOr<TurnAnswer> DecodeTurnReply(const v1::TurnReply& message) {
  TurnAnswer answer;
  answer.steps_accepted = message.steps_accepted();
  answer.round.number = message.round();
  PSD_ASSIGN_OR_RETURN(answer.round.members,
                       DecodeIds(message.member_incarnations(), message.member_counters()));
  return answer;
}

v1::StepReply EncodeResult(const StepResult& result) {
  v1::StepReply message;
  message.set_steps_accepted(result.steps_accepted);
  message.set_parameters_stepped(static_cast<uint32_t>(result.parameters_stepped));
  message.set_max_staleness(result.max_staleness);
  message.set_repeated_step(result.repeated);
  message.set_trainers(static_cast<uint32_t>(result.trainers));
  message.set_loss_scale(result.loss_scale);
  message.set_skipped(result.skipped);
  return message;
}

StepResult DecodeResult(const v1::StepReply& message) {
  StepResult result;
  result.steps_accepted = message.steps_accepted();
  result.parameters_stepped = static_cast<int>(message.parameters_stepped());
  result.max_staleness = message.max_staleness();
  result.repeated = message.repeated_step();
  result.trainers = static_cast<int>(message.trainers());
  result.loss_scale = message.loss_scale();
  result.skipped = message.skipped();
  return result;
}

v1::OptionsReply EncodeGroupOptions(const optim::GroupOptions& options) {
  v1::OptionsReply message;
  message.set_type(options.spec.type);
  EncodeOptions(options.spec.options, message);
  message.set_version(options.version);
  return message;
}

absl::StatusOr<optim::GroupOptions> DecodeGroupOptions(const v1::OptionsReply& message) {
  optim::GroupOptions options;
  options.spec.type = message.type();
  PSD_ASSIGN_OR_RETURN(options.spec.options,
                       DecodeOptions(message.option_names(), message.option_values()));
  options.version = message.version();
  return options;
}

}  // namespace psd::services
