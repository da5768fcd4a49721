#pragma once

// The values of a save as an owner takes them: each with its state in every optimizer.

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
#include "core/worker/checkpoint_types.h"

namespace psd {

// Values go by their number in the save's index. Thread-compatible; `save` outlives it.
class LoadSource {
 public:
  explicit LoadSource(const checkpoint::SaveReader& save);

  // State included.
  uint64_t Bytes(size_t number) const;
  // A value without its tensors.
  worker::ImportItem DescribeItem(size_t number) const;
  // The same with its tensors, or those of some rows. Errors: those of reading.
  absl::StatusOr<worker::ImportItem> ReadItem(size_t number,
                                              std::optional<checkpoint::RowRange> rows) const;
  // Its arrays, elements first. They refer to this object.
  std::vector<PieceSource> SourcesOf(size_t number) const;
  // The next part of it: all of a dense value, or rows of about `room` bytes with their state from
  // `*row` on, which moves behind them; zero when that was all.
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
