#pragma once

// Values that are too large to travel as one message, with their state, piece by piece.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/save_files.h"
#include "client/save_pace.h"
#include "core/base/buffer.h"
#include "core/checkpoint/safetensors_codec.h"
#include "core/rpc/rpc_agent.h"
#include "core/worker/checkpoint_types.h"
#include "core/worker/runtime.h"

namespace psd {

struct PieceOptions {
  rpc::CallOptions call;
  uint64_t piece_bytes = 0;  // above 0
  // Told of bytes that have come or gone. Its error ends the work.
  std::function<absl::Status(uint64_t bytes)> tell;
};

// Where an array's bytes go.
struct PieceTarget {
  uint64_t bytes = 0;
  size_t file = 0;  // of the owner's
};

// Copies `item` and its state on `owner`, between two steps, and brings the copies into those of
// its `files` that `targets` name (the elements', then the state's), at the pace of a save.
// `number` is the owner's for `pace`. Returns version and steps, without tensors.
absl::StatusOr<worker::ExportedItem> SaveInPieces(worker::Runtime& runtime,
                                                  const std::string& owner, size_t number,
                                                  const worker::ExportItem& item,
                                                  const std::vector<PieceTarget>& targets,
                                                  SaveFiles& files, SavePace& pace,
                                                  const PieceOptions& options);

// Where an array's bytes come from.
struct PieceSource {
  checkpoint::TensorSpec spec;
  std::function<absl::StatusOr<Buffer>(uint64_t first, uint64_t bytes)> read;
};

// Brings the arrays of `sources` (the elements, then the state's) to `owner`, and imports `item`,
// which has none of its own, with them: the value and its state as one.
absl::Status LoadInPieces(worker::Runtime& runtime, const std::string& owner,
                          worker::ImportItem item, const std::vector<PieceSource>& sources,
                          const PieceOptions& options);

}  // namespace psd
