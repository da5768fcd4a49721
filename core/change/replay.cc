#include "core/change/replay.h"

#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/completion_threads.h"
#include "core/base/status.h"
#include "core/change/change_codec.h"
#include "core/optim/options/settings_fields.h"
#include "core/optim/owner/hosted_optimizer.h"
#include "core/optim/owner/life_codec.h"
#include "core/program/program_codec.h"
#include "core/store/rows.h"
#include "core/tensor/sparse_tensor.h"

namespace psd::change {
namespace {

using optim::OwnerOptimizer;
using store::EntryPtr;

// For any message with a value's id.
template <typename Message>
GlobalId IdIn(const Message& message) {
  return {message.incarnation(), message.counter()};
}
template <typename Message>
GlobalId OptimizerIn(const Message& message) {
  return {message.optimizer_incarnation(), message.optimizer_counter()};
}

absl::StatusOr<optim::ParameterGradient> DecodeGradient(const v1::SteppedGradient& message) {
  optim::ParameterGradient gradient;
  gradient.parameter = IdIn(message);
  gradient.version = message.oldest_version();
  if (message.has_dense()) {
    PSD_ASSIGN_OR_RETURN(gradient.gradient, DecodeTensor(message.dense()));
    return gradient;
  }
  PSD_ASSIGN_OR_RETURN(const Shape shape, Shape::Checked(message.extents()));
  PSD_ASSIGN_OR_RETURN(const Tensor indices, DecodeTensor(message.indices()));
  PSD_ASSIGN_OR_RETURN(const Tensor values, DecodeTensor(message.values()));
  PSD_ASSIGN_OR_RETURN(SparseTensor sparse, SparseTensor::Create(shape, indices, values));
  gradient.sparse.push_back(std::move(sparse));
  return gradient;
}

absl::StatusOr<optim::StepTerms> DecodeTerms(const v1::SteppedOptimizer& message) {
  optim::StepTerms terms;
  terms.gradient_scale = message.gradient_scale();
  terms.gradient_limit = message.gradient_limit();
  terms.loss_scale = message.loss_scale();
  terms.overflow = message.overflow();
  if (std::isfinite(terms.gradient_scale) && terms.gradient_limit >= 0) return terms;
  return absl::InvalidArgumentError(absl::StrCat("a step with the gradient scale ",
                                                 terms.gradient_scale, " and the limit ",
                                                 terms.gradient_limit));
}

// Checks that the step had the outcome that the record says.
absl::Status CheckResult(const optim::StepResult& result, const v1::SteppedOptimizer& message) {
  // The parameter with the highest staleness may have no name; such parameters are left out.
  const bool all = message.parameters_stepped() == static_cast<uint32_t>(message.gradients_size());
  if (result.steps_accepted == message.steps_accepted() &&
      (result.max_staleness == message.max_staleness() || !all) &&
      static_cast<uint32_t>(result.trainers) == message.trainers() &&
      result.loss_scale == message.next_loss_scale())
    return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(
      "the step led to ", result.steps_accepted, " accepted steps, staleness ",
      result.max_staleness, ", gradients of ", result.trainers, " trainers and loss scale ",
      result.loss_scale, ", and when it was recorded to ", message.steps_accepted(), ", ",
      message.max_staleness(), ", ", message.trainers(), " and ", message.next_loss_scale()));
}

absl::Status CheckLike(const Tensor& tensor, const std::string& label, DType dtype,
                       const Shape& shape) {
  if (tensor.dtype() == dtype && tensor.shape() == shape) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(label, " is ", DTypeName(dtype), shape.ToString(),
                                                 ", and cannot take ", tensor.ToString()));
}

}  // namespace

Replay::~Replay() {
  for (const GlobalId& id : unnamed_) uses_.store.Erase(id);
}

absl::Status Replay::Apply(absl::string_view payload) {
  v1::JournalRecord record;
  if (payload.size() > std::numeric_limits<int>::max())
    return absl::InvalidArgumentError(
        absl::StrCat("a record of ", payload.size(), " bytes, and one has less than 2 GiB"));
  if (!record.ParseFromArray(payload.data(), static_cast<int>(payload.size())))
    return absl::InvalidArgumentError("bytes that are no record of a journal");
  switch (record.change_case()) {
    case v1::JournalRecord::kCreatedValue:
      return Apply(record.created_value());
    case v1::JournalRecord::kCreatedOptimizer:
      return Apply(record.created_optimizer());
    case v1::JournalRecord::kDropped:
      return Apply(record.dropped());
    case v1::JournalRecord::kAssigned:
      return Apply(record.assigned());
    case v1::JournalRecord::kLoaded:
      return Apply(record.loaded());
    case v1::JournalRecord::kStepped:
      return Apply(record.stepped());
    case v1::JournalRecord::kOptions:
      return Apply(record.options());
    case v1::JournalRecord::kLife:
      return Apply(record.life());
    case v1::JournalRecord::CHANGE_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("a record of a kind of change that this program does not know");
}

absl::Status Replay::CheckNew(GlobalId id) const {
  if (id.IsNone()) return absl::InvalidArgumentError("a creation without an id");
  if (!uses_.store.Get(id).ok()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("a creation of value ", id.ToString(), ", which is here already"));
}

absl::StatusOr<std::shared_ptr<OwnerOptimizer>> Replay::FindOptimizer(GlobalId id) const {
  PSD_ASSIGN_OR_RETURN(const EntryPtr entry, uses_.store.Get(id));
  auto optimizer = optim::OptimizerOf(*entry);
  if (optimizer != nullptr) return optimizer;
  return absl::InvalidArgumentError(
      absl::StrCat(entry->Label(), " is ", entry->KindName(), ", not an optimizer"));
}

absl::Status Replay::Apply(const v1::CreatedValue& message) {
  CreateValue change{IdIn(message),  message.name(),          nullptr,         {},
                     message.rows(), message.requires_grad(), message.device()};
  PSD_RETURN_IF_ERROR(CheckNew(change.id));
  if (message.program().empty()) {
    PSD_ASSIGN_OR_RETURN(change.elements, DecodeTensor(message.elements()));
  } else {
    PSD_ASSIGN_OR_RETURN(program::Program program,
                         program::DecodeProgram(message.program(), uses_.program_limits));
    PSD_ASSIGN_OR_RETURN(
        program::CheckedProgram checked,
        program::CheckedProgram::Create(std::move(program), uses_.operators, uses_.program_limits));
    change.program = std::make_shared<const program::CheckedProgram>(std::move(checked));
  }
  const GlobalId id = change.id;
  PSD_ASSIGN_OR_RETURN(const EntryPtr entry, uses_.changes.Apply(std::move(change)).Wait());
  if (entry->id == id) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("a creation of ", entry->Label(), ", which is here already"));
}

absl::Status Replay::Apply(const v1::CreatedOptimizer& message) {
  CreateOptimizer change;
  change.id = IdIn(message);
  PSD_RETURN_IF_ERROR(CheckNew(change.id));
  change.name = message.name();
  change.creation = message.creation();
  for (const v1::CreatedGroup& wire : message.groups()) {
    optim::ParameterGroup& group = change.groups.emplace_back();
    group.spec.type = message.type();
    PSD_ASSIGN_OR_RETURN(group.spec.options, DecodeOptions(wire.options()));
    if (wire.parameter_incarnations_size() != wire.parameter_counters_size())
      return absl::InvalidArgumentError("parameters whose ids are cut off");
    for (int i = 0; i < wire.parameter_counters_size(); ++i) {
      PSD_ASSIGN_OR_RETURN(EntryPtr parameter, uses_.store.Get({wire.parameter_incarnations(i),
                                                                wire.parameter_counters(i)}));
      group.parameters.push_back(std::move(parameter));
    }
  }
  PSD_ASSIGN_OR_RETURN(const auto settings, DecodeOptions(message.settings()));
  PSD_ASSIGN_OR_RETURN(change.settings, optim::SettingsFromFields(settings));
  PSD_ASSIGN_OR_RETURN(change.life, optim::DecodeReportedLife(message.life()));
  const GlobalId id = change.id;
  PSD_ASSIGN_OR_RETURN(const EntryPtr entry,
                       uses_.changes.Apply(std::move(change), nullptr).Wait());
  if (entry->id != id) {
    return absl::InvalidArgumentError(
        absl::StrCat("a creation of ", entry->Label(), ", which is here already"));
  }
  if (message.name().empty()) unnamed_.push_back(id);
  return absl::OkStatus();
}

absl::Status Replay::Apply(const v1::DroppedName& message) {
  PSD_ASSIGN_OR_RETURN(EntryPtr entry, uses_.store.Lookup(message.name()));
  if (entry->id != IdIn(message)) {
    return absl::InvalidArgumentError(absl::StrCat(entry->Label(), " is value ",
                                                   entry->id.ToString(), ", and the name of ",
                                                   IdIn(message).ToString(), " was dropped"));
  }
  PSD_RETURN_IF_ERROR(uses_.changes.Apply(DropName{message.name(), entry}));
  unnamed_.push_back(entry->id);
  return absl::OkStatus();
}

absl::Status Replay::Apply(const v1::AssignedValue& message) {
  AssignValue change;
  PSD_ASSIGN_OR_RETURN(change.entry, uses_.store.Get(IdIn(message)));
  PSD_ASSIGN_OR_RETURN(change.elements, DecodeTensor(message.elements()));
  PSD_RETURN_IF_ERROR(uses_.changes.Apply(change));
  if (change.version == message.version()) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(change.entry->Label(), " was assigned version ",
                                          message.version(), ", and now ", change.version));
}

absl::StatusOr<LoadValue::State> Replay::DecodeState(const v1::LoadedState& message,
                                                     const LoadValue& change) const {
  LoadValue::State state;
  PSD_ASSIGN_OR_RETURN(state.optimizer, FindOptimizer(OptimizerIn(message)));
  const std::optional<size_t> index = state.optimizer->table().Find(change.entry->id);
  if (!index.has_value())
    return absl::InvalidArgumentError(
        absl::StrCat(change.entry->Label(), " is no parameter of ", state.optimizer->TypeName()));
  state.stepped = &state.optimizer->table()[*index];
  state.steps = message.steps();
  const std::vector<optim::StateArray> arrays = state.stepped->state();
  if (state.steps < 0 || static_cast<int>(arrays.size()) != message.arrays_size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(change.entry->Label(), ": ", message.arrays_size(), " arrays of state after ",
                     state.steps, " steps, and it has ", arrays.size()));
  }
  const auto rows = store::AsRows(change.entry->value);
  for (size_t i = 0; i < arrays.size(); ++i) {
    PSD_ASSIGN_OR_RETURN(Tensor array, DecodeTensor(message.arrays(static_cast<int>(i))));
    size_t bytes = arrays[i].bytes;
    if (rows != nullptr) {
      bytes = bytes / static_cast<size_t>(rows->NumRows()) *
              static_cast<size_t>(change.elements.shape()[0]);
    }
    if (array.dtype() != arrays[i].dtype || array.NumBytes() != bytes) {
      return absl::InvalidArgumentError(absl::StrCat("the state '", arrays[i].name, "' of ",
                                                     change.entry->Label(), " cannot take ",
                                                     array.ToString()));
    }
    state.arrays.push_back(std::move(array));
  }
  return state;
}

absl::Status Replay::Apply(const v1::LoadedValue& message) {
  LoadValue change;
  PSD_ASSIGN_OR_RETURN(change.entry, uses_.store.Get(IdIn(message)));
  if (message.has_elements()) {
    PSD_ASSIGN_OR_RETURN(change.elements, DecodeTensor(message.elements()));
  }
  change.first_row = message.first_row();
  const store::Entry& entry = *change.entry;
  if (const auto rows = store::AsRows(entry.value); rows != nullptr) {
    const bool table = change.elements.defined() && change.elements.rank() == 2;
    const int64_t count = table ? change.elements.shape()[0] : 0;
    if (count == 0 || change.first_row < 0 || change.first_row > rows->NumRows() - count) {
      return absl::InvalidArgumentError(
          absl::StrCat(entry.Label(), " has no ", count, " rows from ", change.first_row, " on"));
    }
    PSD_RETURN_IF_ERROR(
        CheckLike(change.elements, entry.Label(), rows->dtype(), {count, rows->shape()[1]}));
  } else if (entry.parameter != nullptr && change.first_row == 0) {
    if (change.elements.defined())
      PSD_RETURN_IF_ERROR(CheckLike(change.elements, entry.Label(), entry.parameter->dtype(),
                                    entry.parameter->shape()));
  } else {
    return absl::InvalidArgumentError(
        absl::StrCat(entry.Label(), " is ", entry.KindName(), ", of which no load changes rows"));
  }
  for (const v1::LoadedState& state : message.states()) {
    PSD_ASSIGN_OR_RETURN(LoadValue::State decoded, DecodeState(state, change));
    change.states.push_back(std::move(decoded));
  }
  return uses_.changes.Apply(change);
}

absl::Status Replay::Apply(const v1::SteppedOptimizer& message) {
  optim::StepChange change;
  PSD_ASSIGN_OR_RETURN(const std::shared_ptr<OwnerOptimizer> optimizer,
                       FindOptimizer(OptimizerIn(message)));
  change.optimizer = optimizer.get();
  PSD_ASSIGN_OR_RETURN(change.terms, DecodeTerms(message));
  optim::StepPlan plan;
  std::vector<size_t> seeds;
  if (!change.terms.overflow) {
    std::vector<optim::ParameterGradient> gradients;
    std::map<GlobalId, size_t> seed_of;
    for (const v1::SteppedGradient& each : message.gradients()) {
      PSD_ASSIGN_OR_RETURN(optim::ParameterGradient gradient, DecodeGradient(each));
      seed_of[gradient.parameter] = each.rounding_seed();
      gradients.push_back(std::move(gradient));
    }
    PSD_ASSIGN_OR_RETURN(plan, optimizer->table().Plan(std::move(gradients)));
    for (const optim::ParameterGradient& each : plan.gradients)
      seeds.push_back(seed_of.at(each.parameter));
    std::vector<std::map<std::string, double>> scheduled;
    for (const v1::RecordedOptions& each : message.scheduled()) {
      PSD_ASSIGN_OR_RETURN(scheduled.emplace_back(), DecodeOptions(each));
    }
    PSD_ASSIGN_OR_RETURN(change.functions, optimizer->FunctionsWith(scheduled));
    change.scheduled = !scheduled.empty();
    change.plan = &plan;
    change.rounding_seeds = seeds;
  }
  for (const v1::EndedStep& step : message.steps()) {
    change.steps.push_back({{step.session_incarnation(), step.session_epoch()},
                            {step.step_incarnation(), step.step_counter()},
                            step.ended_before(),
                            step.seats() == 0 ? 1 : step.seats()});
  }
  PSD_RETURN_IF_ERROR(uses_.changes.Apply(change));
  if (const auto& written = change.under_way.written.event; written != nullptr)
    PSD_RETURN_IF_ERROR(uses_.changes.Complete(change, written->Wait()));
  return CheckResult(change.result, message);
}

absl::Status Replay::Apply(const v1::ChangedOptions& message) {
  optim::OptionsChange change;
  PSD_ASSIGN_OR_RETURN(const std::shared_ptr<OwnerOptimizer> optimizer,
                       FindOptimizer(OptimizerIn(message)));
  change.optimizer = optimizer.get();
  change.group = message.group();
  change.version = message.version();
  if (change.version == 0) return absl::InvalidArgumentError("options without a version");
  PSD_ASSIGN_OR_RETURN(change.options, DecodeOptions(message.options()));
  return uses_.changes.Apply(change);
}

absl::Status Replay::Apply(const v1::ChangedLife& message) {
  optim::LifeChange change;
  PSD_ASSIGN_OR_RETURN(const std::shared_ptr<OwnerOptimizer> optimizer,
                       FindOptimizer(OptimizerIn(message)));
  change.optimizer = optimizer.get();
  PSD_ASSIGN_OR_RETURN(change.life, optim::DecodeReportedLife(message.life()));
  if (message.has_loaded()) {
    const v1::LoadedCounters& loaded = message.loaded();
    if (!std::isfinite(loaded.loss_scale()) || loaded.loss_scale() < 0)
      return absl::InvalidArgumentError(absl::StrCat("the loss scale ", loaded.loss_scale()));
    change.loaded = {loaded.steps(), loaded.loss_scale(), loaded.good_steps()};
    PSD_RETURN_IF_ERROR(optimizer->StateReplaced());
  }
  return uses_.changes.Apply(change);
}

}  // namespace psd::change
