#pragma once

// The messages of the "optimizer.*" methods: wire <-> structs. Pure.

#include <cstddef>
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

namespace psd::worker {

// Columns of names and values, or of the two halves of ids; INVALID_ARGUMENT unless both are of
// one length.
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

// Anything with option_names and option_values.
template <typename Message>
void EncodeOptions(const std::map<std::string, double>& options, Message& message) {
  for (const auto& [name, value] : options) {
    message.add_option_names(name);
    message.add_option_values(value);
  }
}

// Anything with context_incarnations and context_counters.
template <typename Message>
void EncodeContexts(const std::vector<GlobalId>& contexts, Message& message) {
  for (const GlobalId& context : contexts) {
    message.add_context_incarnations(context.incarnation);
    message.add_context_counters(context.counter);
  }
}

// Anything with an optimizer's id.
template <typename Message>
void EncodeOptimizer(GlobalId optimizer, Message& message) {
  message.set_optimizer_incarnation(optimizer.incarnation);
  message.set_optimizer_counter(optimizer.counter);
}
template <typename Message>
GlobalId DecodeOptimizer(const Message& message) {
  return {message.optimizer_incarnation(), message.optimizer_counter()};
}

// What is at its default is left out.
void EncodeSettings(const optim::OptimizerSettings& settings, v1::CreateOptimizerRequest& message);
// Unchecked: see OptimizerSettings::Check.
optim::OptimizerSettings DecodeSettings(const v1::CreateOptimizerRequest& message);

void EncodeTerms(const optim::StepTerms& terms, v1::StepRequest& message);
// Errors: INVALID_ARGUMENT for a scale that is not finite, or a limit that is no limit.
absl::StatusOr<optim::StepTerms> DecodeTerms(const v1::StepRequest& message);

v1::StepReply EncodeResult(const optim::StepResult& result);
optim::StepResult DecodeResult(const v1::StepReply& message);

v1::OptionsReply EncodeGroupOptions(const optim::GroupOptions& options);
absl::StatusOr<optim::GroupOptions> DecodeGroupOptions(const v1::OptionsReply& message);

}  // namespace psd::worker
