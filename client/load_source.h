#pragma once

// Reads the values of a save in the form in which an owner imports them: each together with its
// state in every optimizer.

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "client/pieces.h"
#include "core/checkpoint/checkpoint_index.h"
#include "core/checkpoint/save_reader.h"
#include "core/services/checkpoint/checkpoint_types.h"

namespace psd {

// `number` is that of a value in the save's index. Thread-compatible. Requires: `save` outlives it.
class LoadSource {
 public:
  explicit LoadSource(const checkpoint::SaveReader& save);

  // Returns the bytes of the value and its state.
  uint64_t Bytes(size_t number) const;
  // Returns the value's description without its tensors.
  services::ImportItem DescribeItem(size_t number) const;
  // Returns the value with all its tensors, or with those of `rows` only. Errors: those of reading.
  absl::StatusOr<services::ImportItem> ReadItem(size_t number,
                                                std::optional<checkpoint::RowRange> rows) const;
  // Returns sources for the value's arrays: the elements, then the state. They refer to this
  // object, which must outlive them.
  std::vector<PieceSource> SourcesOf(size_t number) const;
  // Returns the part of a value to read next. For a dense value that is nullopt, which means all of
  // it. For a table it is a range of rows that starts at `*row` and has, with its state, about
  // `room` bytes but at least one row; `*row` moves behind the range, and becomes 0 after the last
  // row.
  std::optional<checkpoint::RowRange> NextRows(size_t number, uint64_t room, int64_t* row) const;

 private:
  // A parameter of one of the index's optimizers.
  struct StateRef {
    size_t optimizer = 0;
    size_t parameter = 0;
  };
  const std::vector<StateRef>& StatesOf(const checkpoint::SavedValue& value) const;

  const checkpoint::SaveReader& save_;
  const checkpoint::CheckpointIndex& index_;
  std::map<std::pair<std::string, std::string>, std::vector<StateRef>> states_;  // by owner, name
  const std::vector<StateRef> none_;
};

}  // namespace psd
