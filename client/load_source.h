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

// In all functions, `number` is the index of a value in the save's index. Thread-compatible.
// Requires: `save` outlives this object.
class LoadSource {
 public:
  explicit LoadSource(const checkpoint::SaveReader& save);

  // Returns the bytes of the value and its state.
  uint64_t Bytes(size_t number) const;
  // Returns the value's description without its tensors.
  services::ImportItem DescribeItem(size_t number) const;
  // Returns the value with all its tensors, or with only the given rows. Errors: those of reading
  // the files.
  absl::StatusOr<services::ImportItem> ReadItem(size_t number,
                                                std::optional<checkpoint::RowRange> rows) const;
  // Returns sources for the value's arrays: the elements, then the state. They refer to this
  // object, which must outlive them.
  std::vector<PieceSource> SourcesOf(size_t number) const;
  // Returns which rows of the value to read next. For a dense value the result is nullopt, which
  // means the whole value. For a table it is a range of rows that starts at `*row` and has, with
  // its state, about `room` bytes but at least one row; `*row` then moves to the end of the range,
  // and becomes 0 after the last row.
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
