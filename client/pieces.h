#pragma once

// Transfers values that are too large for one message, with their optimizer state, in pieces.

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
#include "core/runtime/runtime.h"
#include "core/services/checkpoint/checkpoint_types.h"

namespace psd {

struct PieceOptions {
  rpc::CallOptions call;
  uint64_t piece_bytes = 0;  // above 0
  // Called with the number of bytes of each piece that has been transferred. An error ends the
  // transfer.
  std::function<absl::Status(uint64_t bytes)> tell;
};

// The file that an array's bytes go to.
struct PieceTarget {
  uint64_t bytes = 0;  // of the array
  size_t file = 0;     // the index among the owner's files
};

// Saves a value: copies `item` and its state on `owner` between two steps, then moves the copies
// piece by piece into `files`, pausing as `pace` says. `targets` has one element for each array:
// the elements, then the state. `number` is the owner's number in `pace`. Returns the value's
// version and step counts, without tensors.
absl::StatusOr<services::ExportedItem> SaveInPieces(worker::Runtime& runtime,
                                                    const std::string& owner, size_t number,
                                                    const services::ExportItem& item,
                                                    const std::vector<PieceTarget>& targets,
                                                    SaveFiles& files, SavePace& pace,
                                                    const PieceOptions& options);

// An array, and a function that reads `bytes` of its bytes from byte `first` on.
struct PieceSource {
  checkpoint::TensorSpec spec;
  std::function<absl::StatusOr<Buffer>(uint64_t first, uint64_t bytes)> read;
};

// Loads a value: sends the arrays of `sources` (the elements, then the state) to `owner`, then has
// the owner import `item`, which has no tensors of its own, with these arrays. The value and its
// state change together.
absl::Status LoadInPieces(worker::Runtime& runtime, const std::string& owner,
                          services::ImportItem item, const std::vector<PieceSource>& sources,
                          const PieceOptions& options);

}  // namespace psd
