#include "core/services/checkpoint/checkpoint_codec.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/checkpoint/xxh128.h"
#include "core/optim/owner/life_codec.h"

namespace psd::services {
namespace {

using checkpoint::SavedOptimizer;
using checkpoint::SavedState;
using checkpoint::SavedValue;
using checkpoint::TensorSpec;
using checkpoint::ValueKind;

constexpr std::pair<ValueKind, uint32_t> kKinds[] = {
    {ValueKind::kParameter, 1}, {ValueKind::kTensor, 2}, {ValueKind::kRows, 3}};

template <typename Repeated>
absl::StatusOr<Shape> DecodeShape(const Repeated& extents, const std::string& what) {
  auto shape = Shape::Checked({extents.data(), static_cast<size_t>(extents.size())});
  if (!shape.ok()) return Annotate(shape.status(), what);
  return shape;
}

absl::StatusOr<DType> DecodeDType(uint32_t number, const std::string& what) {
  if (!IsValidDType(number))
    return absl::InvalidArgumentError(absl::StrCat(what, " has the unknown dtype ", number));
  return static_cast<DType>(number);
}

void Encode(const HostedValue& hosted, v1::SavedValue& message) {
  const SavedValue& value = hosted.value;
  message.set_incarnation(hosted.id.incarnation);
  message.set_counter(hosted.id.counter);
  message.set_name(value.name);
  for (const auto& [kind, number] : kKinds)
    if (kind == value.kind) message.set_kind(number);
  message.set_dtype(static_cast<uint32_t>(value.dtype));
  for (int64_t extent : value.shape.extents()) message.add_shape(extent);
  message.set_requires_grad(value.requires_grad);
  message.set_version(value.version);
}

absl::StatusOr<HostedValue> Decode(const v1::SavedValue& message) {
  HostedValue hosted;
  hosted.id = {message.incarnation(), message.counter()};
  SavedValue& value = hosted.value;
  value.name = message.name();
  const auto* kind = std::find_if(std::begin(kKinds), std::end(kKinds), [&](const auto& known) {
    return known.second == message.kind();
  });
  if (kind == std::end(kKinds)) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", value.name, "' is of the unknown kind ", message.kind()));
  }
  value.kind = kind->first;
  PSD_ASSIGN_OR_RETURN(value.dtype, DecodeDType(message.dtype(), value.name));
  PSD_ASSIGN_OR_RETURN(value.shape, DecodeShape(message.shape(), value.name));
  value.requires_grad = message.requires_grad();
  value.version = message.version();
  PSD_RETURN_IF_ERROR(checkpoint::CheckKind(value));
  return hosted;
}

void Encode(const TensorSpec& array, v1::StateArray& message) {
  message.set_slot(array.name);
  message.set_dtype(static_cast<uint32_t>(array.dtype));
  for (int64_t extent : array.shape.extents()) message.add_shape(extent);
}

void Encode(const HostedOptimizer& hosted, v1::SavedOptimizer& message) {
  const SavedOptimizer& optimizer = hosted.optimizer;
  message.set_incarnation(hosted.id.incarnation);
  message.set_counter(hosted.id.counter);
  message.set_name(optimizer.name);
  message.set_type(optimizer.type);
  message.set_steps_accepted(optimizer.steps_accepted);
  message.set_loss_scale(optimizer.loss_scale);
  message.set_good_steps(optimizer.good_steps);
  message.mutable_settings()->insert(optimizer.settings.begin(), optimizer.settings.end());
  optim::EncodeReportedLife(hosted.life, message);
  for (const checkpoint::SavedGroup& saved : optimizer.groups) {
    v1::SavedGroup& group = *message.add_groups();
    group.mutable_options()->insert(saved.options.begin(), saved.options.end());
    group.mutable_created_with()->insert(saved.created_with.begin(), saved.created_with.end());
  }
  for (size_t i = 0; i < optimizer.parameters.size(); ++i) {
    v1::OptimizedParameter& parameter = *message.add_parameters();
    parameter.set_name(optimizer.parameters[i].parameter);
    parameter.set_group(static_cast<uint32_t>(optimizer.parameters[i].group));
    for (const TensorSpec& array : hosted.state[i]) Encode(array, *parameter.add_state());
  }
}

template <typename Repeated>
absl::StatusOr<std::vector<TensorSpec>> DecodeState(const Repeated& messages) {
  std::vector<TensorSpec> arrays;
  for (const v1::StateArray& state : messages) {
    TensorSpec& array = arrays.emplace_back();
    array.name = state.slot();
    PSD_ASSIGN_OR_RETURN(array.dtype, DecodeDType(state.dtype(), state.slot()));
    PSD_ASSIGN_OR_RETURN(array.shape, DecodeShape(state.shape(), state.slot()));
  }
  return arrays;
}

absl::StatusOr<HostedOptimizer> Decode(const v1::SavedOptimizer& message) {
  HostedOptimizer hosted;
  hosted.id = {message.incarnation(), message.counter()};
  SavedOptimizer& optimizer = hosted.optimizer;
  optimizer.name = message.name();
  optimizer.type = message.type();
  optimizer.steps_accepted = message.steps_accepted();
  optimizer.loss_scale = message.loss_scale();
  optimizer.good_steps = message.good_steps();
  optimizer.settings.insert(message.settings().begin(), message.settings().end());
  PSD_ASSIGN_OR_RETURN(hosted.life, optim::DecodeReportedLife(message));
  for (const v1::SavedGroup& group : message.groups()) {
    checkpoint::SavedGroup& saved = optimizer.groups.emplace_back();
    saved.options.insert(group.options().begin(), group.options().end());
    saved.created_with.insert(group.created_with().begin(), group.created_with().end());
  }
  if (optimizer.groups.empty())
    return absl::InvalidArgumentError(
        absl::StrCat("optimizer '", optimizer.name, "' has no group of options"));
  for (const v1::OptimizedParameter& parameter : message.parameters()) {
    if (parameter.group() >= optimizer.groups.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("optimizer '", optimizer.name, "' has ", optimizer.groups.size(),
                       " groups, but '", parameter.name(), "' is in group ", parameter.group()));
    }
    SavedState& state = optimizer.parameters.emplace_back();
    state.parameter = parameter.name();
    state.group = parameter.group();
    PSD_ASSIGN_OR_RETURN(std::vector<TensorSpec> arrays, DecodeState(parameter.state()));
    hosted.state.push_back(std::move(arrays));
  }
  return hosted;
}

}  // namespace

v1::OwnerContents EncodeContents(const OwnerContents& contents) {
  v1::OwnerContents message;
  for (const HostedValue& value : contents.values) Encode(value, *message.add_values());
  for (const HostedOptimizer& optimizer : contents.optimizers)
    Encode(optimizer, *message.add_optimizers());
  for (const std::string& text : contents.left_out) message.add_left_out(text);
  message.set_writes_files(contents.writes_files);
  message.set_incarnation(contents.incarnation);
  return message;
}

absl::StatusOr<OwnerContents> DecodeContents(const v1::OwnerContents& message) {
  OwnerContents contents;
  for (const v1::SavedValue& value : message.values()) {
    PSD_ASSIGN_OR_RETURN(HostedValue hosted, Decode(value));
    contents.values.push_back(std::move(hosted));
  }
  for (const v1::SavedOptimizer& optimizer : message.optimizers()) {
    PSD_ASSIGN_OR_RETURN(HostedOptimizer hosted, Decode(optimizer));
    contents.optimizers.push_back(std::move(hosted));
  }
  contents.left_out.assign(message.left_out().begin(), message.left_out().end());
  contents.writes_files = message.writes_files();
  contents.incarnation = message.incarnation();
  return contents;
}

v1::ExportItem EncodeItem(const ExportItem& item) {
  v1::ExportItem message;
  message.set_incarnation(item.value.incarnation);
  message.set_counter(item.value.counter);
  message.set_first_row(item.first_row);
  message.set_rows(item.rows);
  for (GlobalId optimizer : item.optimizers) {
    message.add_optimizer_incarnations(optimizer.incarnation);
    message.add_optimizer_counters(optimizer.counter);
  }
  for (size_t file : item.files) message.add_files(static_cast<uint32_t>(file));
  return message;
}

Exported DecodeWithoutTensors(const v1::ExportReply& message) {
  Exported exported;
  exported.steps_accepted = message.steps_accepted();
  for (const v1::ExportedItem& each : message.items()) {
    ExportedItem& item = exported.items.emplace_back();
    item.version = each.version();
    for (uint64_t steps : each.steps()) item.states.emplace_back().steps = steps;
  }
  return exported;
}

v1::PieceRequest EncodePiece(GlobalId id, const PieceRange& range) {
  v1::PieceRequest message;
  message.set_incarnation(id.incarnation);
  message.set_counter(id.counter);
  message.set_array(range.array);
  message.set_first_byte(range.first_byte);
  message.set_bytes(range.bytes);
  return message;
}

void EncodeArrays(const std::vector<TensorSpec>& arrays, v1::RoomRequest& message) {
  for (const TensorSpec& array : arrays) Encode(array, *message.add_arrays());
}

absl::StatusOr<std::vector<TensorSpec>> DecodeArrays(const v1::RoomRequest& message) {
  return DecodeState(message.arrays());
}

void EncodeOwnFiles(const OwnFiles& files, v1::OpenSaveRequest& message) {
  message.set_folder(files.folder);
  message.set_token(files.token);
  for (const checkpoint::FileSpec& spec : files.files) {
    v1::OwnFile& file = *message.add_files();
    file.set_name(spec.name);
    for (const TensorSpec& tensor : spec.tensors) Encode(tensor, *file.add_tensors());
  }
}

absl::StatusOr<OwnFiles> DecodeOwnFiles(const v1::OpenSaveRequest& message) {
  OwnFiles files{message.folder(), message.token(), {}};
  for (const v1::OwnFile& file : message.files()) {
    checkpoint::FileSpec& spec = files.files.emplace_back();
    spec.name = file.name();
    PSD_ASSIGN_OR_RETURN(spec.tensors, DecodeState(file.tensors()));
  }
  return files;
}

v1::FinishSaveReply EncodeFinished(const std::vector<checkpoint::SavedFile>& files) {
  v1::FinishSaveReply message;
  for (const checkpoint::SavedFile& file : files) {
    v1::FinishedFile& finished = *message.add_files();
    finished.set_name(file.name);
    finished.set_bytes(file.bytes);
    finished.set_xxh128(file.xxh128);
  }
  return message;
}

absl::StatusOr<std::vector<checkpoint::SavedFile>> DecodeFinished(
    const v1::FinishSaveReply& message) {
  std::vector<checkpoint::SavedFile> files;
  for (const v1::FinishedFile& finished : message.files()) {
    if (!checkpoint::IsXxh128(finished.xxh128()))
      return absl::InvalidArgumentError("a file's checksum is not an XXH128");
    files.push_back({finished.name(), finished.bytes(), finished.xxh128()});
  }
  return files;
}

}  // namespace psd::services
