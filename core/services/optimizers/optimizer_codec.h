#pragma once

// Converts the messages of the "optimizer.*" methods to structs and back. Pure.

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "core/base/ids.h"
#include "core/optim/functional/functional_optimizer.h"
#include "core/optim/options/optimizer_config.h"
#include "core/optim/owner/owner_optimizer.h"
#include "core/optim/steps/step_request.h"
#include "proto/psd/v1/worker.pb.h"

namespace psd::services {

// The part of a step's options that all members of a round must share. See optim::StepRequest.
struct TurnWishes {
  optim::StepTerms terms;  // before anything was measured
  double clip_norm = std::numeric_limits<double>::infinity();
  bool measures = false;  // whether the gradients are measured before the step
};

// For any message with seats, which are left out if a step is for one.
template <typename Message>
void EncodeSeats(uint32_t seats, Message& message) {
  if (seats != 1) message.set_seats(seats);
}
template <typename Message>
uint32_t DecodeSeats(const Message& message) {
  return message.seats() == 0 ? 1 : message.seats();
}

// The lead's answer when a turn has come.
struct TurnAnswer {
  uint64_t steps_accepted = 0;  // by the lead
  optim::RoundWord round;       // its number is 0 if steps go one by one
};

// DecodeOptions takes columns of names and values, DecodeIds columns of the two halves of ids.
// Errors: INVALID_ARGUMENT if the columns differ in length.
template <typename Names, typename Values>
absl::StatusOr<std::map<std::string, double>> DecodeOptions(const Names& names,
                                                            const Values& values) {
  if (names.size() != values.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(names.size(), " names of options with ", values.size(), " values"));
  }
  std::map<std::string, double> options;
  for (int i = 0; i < names.size(); ++i) options[names.Get(i)] = values.Get(i);
  return options;
}

template <typename Incarnations, typename Counters>
absl::StatusOr<std::vector<GlobalId>> DecodeIds(const Incarnations& incarnations,
                                                const Counters& counters) {
  if (incarnations.size() != counters.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(incarnations.size(), " ids with ", counters.size(), " counters"));
  }
  std::vector<GlobalId> ids;
  ids.reserve(static_cast<size_t>(incarnations.size()));
  for (int i = 0; i < incarnations.size(); ++i)
    ids.push_back({incarnations.Get(i), counters.Get(i)});
  return ids;
}

// For any message with option_names and option_values.
template <typename Message>
void EncodeOptions(const std::map<std::string, double>& options, Message& message) {
  for (const auto& [name, value] : options) {
    message.add_option_names(name);
    message.add_option_values(value);
  }
}

// For any message with context_incarnations and context_counters.
template <typename Message>
void EncodeContexts(const std::vector<GlobalId>& contexts, Message& message) {
  for (const GlobalId& context : contexts) {
    message.add_context_incarnations(context.incarnation);
    message.add_context_counters(context.counter);
  }
}

// For any message with an optimizer's id.
template <typename Message>
void EncodeOptimizer(GlobalId optimizer, Message& message) {
  message.set_optimizer_incarnation(optimizer.incarnation);
  message.set_optimizer_counter(optimizer.counter);
}
template <typename Message>
GlobalId DecodeOptimizer(const Message& message) {
  return {message.optimizer_incarnation(), message.optimizer_counter()};
}

// Leaves out the schedule, the loss scaling and the mode if they are at their defaults.
void EncodeSettings(const optim::OptimizerSettings& settings, v1::CreateOptimizerRequest& message);
// The result is not checked; see OptimizerSettings::Check.
optim::OptimizerSettings DecodeSettings(const v1::CreateOptimizerRequest& message);

void EncodeTerms(const optim::StepTerms& terms, v1::StepRequest& message);
// Errors: INVALID_ARGUMENT for a scale that is not finite, and for a limit that is NaN or negative.
absl::StatusOr<optim::StepTerms> DecodeTerms(const v1::StepRequest& message);

void EncodePlace(const optim::RoundPlace& place, v1::RoundPlace& message);
// `trainer` is the caller. Errors: INVALID_ARGUMENT if there is no number, or the columns of the
// members differ in length.
absl::StatusOr<optim::RoundPlace> DecodePlace(Incarnation trainer, const v1::RoundPlace& message);

// Writes a trainer's wishes for the round of a turn, and reads them into a request for the turn.
void EncodeWishes(const TurnWishes& wishes, v1::TurnRequest& message);
// Errors: those of DecodeTerms; INVALID_ARGUMENT for a norm that is NaN or negative.
absl::StatusOr<TurnWishes> DecodeWishes(const v1::TurnRequest& message);

v1::TurnReply EncodeTurnReply(const optim::StepResult& result);
absl::StatusOr<TurnAnswer> DecodeTurnReply(const v1::TurnReply& message);

v1::StepReply EncodeResult(const optim::StepResult& result);
optim::StepResult DecodeResult(const v1::StepReply& message);

v1::OptionsReply EncodeGroupOptions(const optim::GroupOptions& options);
absl::StatusOr<optim::GroupOptions> DecodeGroupOptions(const v1::OptionsReply& message);

}  // namespace psd::services
