#include "core/change/change_codec.h"

#include <limits>
#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/buffer.h"
#include "core/base/status.h"
#include "core/optim/options/settings_fields.h"
#include "core/optim/owner/life_codec.h"
#include "core/optim/rows/sparse_gradient.h"
#include "core/program/program_codec.h"
#include "core/tensor/dtype.h"
#include "core/tensor/shape.h"
#include "core/tensor/tensor_codec.h"

namespace psd::change {
namespace {

// For any message with a value's id.
template <typename Message>
void EncodeId(GlobalId id, Message& message) {
  message.set_incarnation(id.incarnation);
  message.set_counter(id.counter);
}

template <typename Message>
void EncodeOptimizerId(const optim::OwnerOptimizer& optimizer, Message& message) {
  message.set_optimizer_incarnation(optimizer.claim_id().incarnation);
  message.set_optimizer_counter(optimizer.claim_id().counter);
}

bool Named(const store::Entry& entry) {
  return !entry.name.empty();
}

absl::Status Encode(const CreateValue& change, v1::JournalRecord& record) {
  v1::CreatedValue& message = *record.mutable_created_value();
  EncodeId(change.id, message);
  message.set_name(change.name);
  message.set_rows(change.rows);
  message.set_requires_grad(change.requires_grad);
  message.set_device(change.device);
  if (change.program == nullptr) return EncodeTensor(change.elements, *message.mutable_elements());
  message.set_program(program::EncodeProgram(change.program->program()));
  return absl::OkStatus();
}

absl::Status Encode(const CreateOptimizer& change, v1::JournalRecord& record) {
  v1::CreatedOptimizer& message = *record.mutable_created_optimizer();
  EncodeId(change.id, message);
  message.set_name(change.name);
  message.set_creation(change.creation);
  message.set_type(change.groups[0].spec.type);
  for (const optim::ParameterGroup& group : change.groups) {
    v1::CreatedGroup& wire = *message.add_groups();
    EncodeOptions(group.spec.options, *wire.mutable_options());
    for (const store::EntryPtr& parameter : group.parameters) {
      if (!Named(*parameter)) continue;
      wire.add_parameter_incarnations(parameter->id.incarnation);
      wire.add_parameter_counters(parameter->id.counter);
    }
  }
  EncodeOptions(optim::SettingsFields(change.settings), *message.mutable_settings());
  optim::EncodeReportedLife(change.life, *message.mutable_life());
  return absl::OkStatus();
}

absl::Status Encode(const DropName& change, v1::JournalRecord& record) {
  EncodeId(change.entry->id, *record.mutable_dropped());
  record.mutable_dropped()->set_name(change.name);
  return absl::OkStatus();
}

absl::Status Encode(const AssignValue& change, v1::JournalRecord& record) {
  v1::AssignedValue& message = *record.mutable_assigned();
  EncodeId(change.entry->id, message);
  message.set_version(change.version);
  return EncodeTensor(change.elements, *message.mutable_elements());
}

absl::Status Encode(const LoadValue& change, v1::JournalRecord& record) {
  v1::LoadedValue& message = *record.mutable_loaded();
  EncodeId(change.entry->id, message);
  message.set_first_row(change.first_row);
  if (change.elements.defined())
    PSD_RETURN_IF_ERROR(EncodeTensor(change.elements, *message.mutable_elements()));
  for (const LoadValue::State& state : change.states) {
    v1::LoadedState& wire = *message.add_states();
    EncodeOptimizerId(*state.optimizer, wire);
    wire.set_steps(state.steps);
    for (const Tensor& array : state.arrays)
      PSD_RETURN_IF_ERROR(EncodeTensor(array, *wire.add_arrays()));
  }
  return absl::OkStatus();
}

absl::Status EncodeGradients(const optim::StepChange& change, v1::SteppedOptimizer& message) {
  const optim::StepPlan& plan = *change.plan;
  const optim::ParameterTable& table = change.optimizer->table();
  for (size_t i = 0; i < plan.indices.size(); ++i) {
    if (!Named(*table[plan.indices[i]].entry())) continue;
    const optim::ParameterGradient& gradient = plan.gradients[i];
    v1::SteppedGradient& wire = *message.add_gradients();
    EncodeId(gradient.parameter, wire);
    wire.set_oldest_version(gradient.version.oldest());
    wire.set_rounding_seed(change.rounding_seeds[i]);
    if (gradient.rows == nullptr) {
      PSD_RETURN_IF_ERROR(EncodeTensor(*gradient.gradient, *wire.mutable_dense()));
      continue;
    }
    const SparseTensor& entries = gradient.rows->entries;
    for (const int64_t extent : entries.shape().extents()) wire.add_extents(extent);
    PSD_RETURN_IF_ERROR(EncodeTensor(entries.indices(), *wire.mutable_indices()));
    PSD_RETURN_IF_ERROR(EncodeTensor(entries.values(), *wire.mutable_values()));
  }
  return absl::OkStatus();
}

absl::Status Encode(const optim::StepChange& change, v1::JournalRecord& record) {
  v1::SteppedOptimizer& message = *record.mutable_stepped();
  EncodeOptimizerId(*change.optimizer, message);
  if (change.plan != nullptr) PSD_RETURN_IF_ERROR(EncodeGradients(change, message));
  message.set_gradient_scale(change.terms.gradient_scale);
  message.set_gradient_limit(change.terms.gradient_limit);
  message.set_loss_scale(change.terms.loss_scale);
  message.set_overflow(change.terms.overflow);
  if (change.scheduled) {
    for (const optim::FunctionPtr& function : change.functions)
      EncodeOptions(function->spec().options, *message.add_scheduled());
  }
  for (const optim::StepChange::Ended& step : change.steps) {
    v1::EndedStep& wire = *message.add_steps();
    wire.set_session_incarnation(step.session.incarnation);
    wire.set_session_epoch(step.session.counter);
    wire.set_step_incarnation(step.step.incarnation);
    wire.set_step_counter(step.step.counter);
    wire.set_ended_before(step.ended_before);
    if (step.seats != 1) wire.set_seats(step.seats);
  }
  message.set_steps_accepted(change.result.steps_accepted);
  message.set_parameters_stepped(static_cast<uint32_t>(change.result.parameters_stepped));
  message.set_max_staleness(change.result.max_staleness);
  message.set_trainers(static_cast<uint32_t>(change.result.trainers));
  message.set_next_loss_scale(change.result.loss_scale);
  return absl::OkStatus();
}

absl::Status Encode(const optim::OptionsChange& change, v1::JournalRecord& record) {
  v1::ChangedOptions& message = *record.mutable_options();
  EncodeOptimizerId(*change.optimizer, message);
  message.set_group(change.group);
  message.set_version(change.version);
  EncodeOptions(change.options, *message.mutable_options());
  return absl::OkStatus();
}

absl::Status Encode(const optim::LifeChange& change, v1::JournalRecord& record) {
  v1::ChangedLife& message = *record.mutable_life();
  EncodeOptimizerId(*change.optimizer, message);
  optim::EncodeReportedLife(change.life, *message.mutable_life());
  if (!change.loaded.has_value()) return absl::OkStatus();
  message.mutable_loaded()->set_steps(change.loaded->steps);
  message.mutable_loaded()->set_loss_scale(change.loaded->loss_scale);
  message.mutable_loaded()->set_good_steps(change.loaded->good_steps);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<v1::JournalRecord> EncodeChange(const Change& change) {
  v1::JournalRecord record;
  PSD_RETURN_IF_ERROR(
      std::visit([&record](const auto* each) { return Encode(*each, record); }, change));
  if (record.ByteSizeLong() > std::numeric_limits<int>::max()) {
    return absl::ResourceExhaustedError(absl::StrCat("a change of ", record.ByteSizeLong(),
                                                     " bytes, and a record has less than 2 GiB"));
  }
  return record;
}

absl::Status EncodeTensor(const Tensor& tensor, v1::RecordedTensor& message) {
  PSD_ASSIGN_OR_RETURN(const Tensor packed, tensor.Contiguous());
  message.set_dtype(static_cast<uint32_t>(packed.dtype()));
  for (const int64_t extent : packed.shape().extents()) message.add_extents(extent);
  message.set_elements(packed.raw_data(), packed.NumBytes());
  return absl::OkStatus();
}

absl::StatusOr<Tensor> DecodeTensor(const v1::RecordedTensor& message) {
  if (!IsValidDType(message.dtype()))
    return absl::InvalidArgumentError(absl::StrCat("a tensor of the dtype ", message.dtype()));
  PSD_ASSIGN_OR_RETURN(const Shape shape, Shape::Checked(message.extents()));
  return psd::DecodeTensor({shape, static_cast<DType>(message.dtype()), message.elements().size()},
                           Buffer::FromString(message.elements()));
}

void EncodeOptions(const std::map<std::string, double>& options, v1::RecordedOptions& message) {
  for (const auto& [name, value] : options) {
    message.add_names(name);
    message.add_values(value);
  }
}

absl::StatusOr<std::map<std::string, double>> DecodeOptions(const v1::RecordedOptions& message) {
  if (message.names_size() != message.values_size()) {
    return absl::InvalidArgumentError(absl::StrCat(message.names_size(), " names of options with ",
                                                   message.values_size(), " values"));
  }
  std::map<std::string, double> options;
  for (int i = 0; i < message.names_size(); ++i) options[message.names(i)] = message.values(i);
  return options;
}

}  // namespace psd::change
