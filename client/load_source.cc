#include "client/load_source.h"

#include <algorithm>

#include "core/base/status.h"

namespace psd {

using checkpoint::SavedOptimizer;
using checkpoint::SavedState;
using checkpoint::SavedValue;
using checkpoint::ValueKind;
using services::ImportItem;

LoadSource::LoadSource(const checkpoint::SaveReader& save) : save_(save), index_(save.index()) {
  for (size_t number = 0; number < index_.optimizers.size(); ++number) {
    const std::vector<SavedState>& parameters = index_.optimizers[number].parameters;
    for (size_t i = 0; i < parameters.size(); ++i)
      states_[{parameters[i].owner, parameters[i].parameter}].push_back({number, i});
  }
}

const std::vector<LoadSource::StateRef>& LoadSource::StatesOf(const SavedValue& value) const {
  auto found = states_.find({value.owner, value.name});
  return found == states_.end() ? none_ : found->second;
}

ImportItem LoadSource::DescribeItem(size_t number) const {
  const SavedValue& value = index_.values[number];
  ImportItem item;
  item.name = value.name;
  for (const StateRef& ref : StatesOf(value)) {
    const SavedState& saved = index_.optimizers[ref.optimizer].parameters[ref.parameter];
    services::ImportedState& state = item.states.emplace_back();
    state.optimizer = index_.optimizers[ref.optimizer].name;
    state.steps = saved.steps;
    for (const checkpoint::SavedSlot& slot : saved.slots) state.slots.push_back(slot.name);
  }
  return item;
}

absl::StatusOr<ImportItem> LoadSource::ReadItem(size_t number,
                                                std::optional<checkpoint::RowRange> rows) const {
  const SavedValue& value = index_.values[number];
  ImportItem item = DescribeItem(number);
  item.first_row = rows.has_value() ? rows->first : 0;
  PSD_ASSIGN_OR_RETURN(item.elements, save_.ReadValue(value, rows));
  const std::vector<StateRef>& states = StatesOf(value);
  for (size_t i = 0; i < states.size(); ++i) {
    const SavedOptimizer& optimizer = index_.optimizers[states[i].optimizer];
    for (const checkpoint::SavedSlot& slot : optimizer.parameters[states[i].parameter].slots) {
      PSD_ASSIGN_OR_RETURN(Tensor array,
                           save_.ReadState(optimizer, states[i].parameter, slot, rows));
      item.states[i].arrays.push_back(std::move(array));
    }
  }
  return item;
}

std::vector<PieceSource> LoadSource::SourcesOf(size_t number) const {
  const SavedValue& value = index_.values[number];
  std::vector<PieceSource> sources = {
      {{"", value.dtype, value.shape}, [this, &value](uint64_t first, uint64_t bytes) {
         return save_.ReadValueBytes(value, first, bytes);
       }}};
  for (const StateRef& ref : StatesOf(value)) {
    const SavedOptimizer& optimizer = index_.optimizers[ref.optimizer];
    for (const checkpoint::SavedSlot& slot : optimizer.parameters[ref.parameter].slots) {
      sources.push_back({save_.StateSpec(optimizer, ref.parameter, slot),
                         [this, &optimizer, ref, &slot](uint64_t first, uint64_t bytes) {
                           return save_.ReadStateBytes(optimizer, ref.parameter, slot, first,
                                                       bytes);
                         }});
    }
  }
  return sources;
}

uint64_t LoadSource::Bytes(size_t number) const {
  uint64_t bytes = 0;
  for (const PieceSource& source : SourcesOf(number)) bytes += source.spec.bytes();
  return bytes;
}

std::optional<checkpoint::RowRange> LoadSource::NextRows(size_t number, uint64_t room,
                                                         int64_t* row) const {
  const SavedValue& value = index_.values[number];
  if (value.kind != ValueKind::kRows) return std::nullopt;
  size_t arrays = 1;
  for (const StateRef& ref : StatesOf(value))
    arrays += index_.optimizers[ref.optimizer].parameters[ref.parameter].slots.size();
  const uint64_t row_bytes =
      static_cast<uint64_t>(value.shape[1]) * ItemSize(value.dtype) * arrays + 1;
  const int64_t left = value.shape[0] - *row;
  const checkpoint::RowRange rows{
      *row, std::clamp<int64_t>(static_cast<int64_t>(room / row_bytes), 1, left)};
  *row = rows.count == left ? 0 : *row + rows.count;
  return rows;
}

}  // namespace psd
