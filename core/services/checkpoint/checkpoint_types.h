#pragma once

// Types that owners exchange with the workers that save or load.

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/buffer.h"
#include "core/base/ids.h"
#include "core/checkpoint/checkpoint_index.h"
#include "core/checkpoint/safetensors_codec.h"
#include "core/checkpoint/tensor_file.h"
#include "core/optim/owner/optimizer_life.h"
#include "core/tensor/tensor.h"

namespace psd::services {

struct HostedValue {
  GlobalId id;
  checkpoint::SavedValue value;  // its owner and file are not set
};

struct HostedOptimizer {
  GlobalId id;
  checkpoint::SavedOptimizer optimizer;  // its steps, slots, owners and files are not set
  // The state of each parameter, named by slot.
  std::vector<std::vector<checkpoint::TensorSpec>> state;
  // The life of the part, in a description; unset in a request to host it.
  optim::OptimizerLife life;
};

// The contents of one owner: those that it hosts, or those that are to be loaded into it.
struct OwnerContents {
  std::vector<HostedValue> values;  // sorted by name
  std::vector<HostedOptimizer> optimizers;
  std::vector<std::string> left_out;  // values that cannot be saved: "'replay' (replay_buffer)"
  bool writes_files = false;    // whether the owner may be able to write its own files of a save
  Incarnation incarnation = 0;  // the owner's, in a description; otherwise 0
};

// A value to copy out, with its state in some optimizers.
struct ExportItem {
  GlobalId value;
  int64_t first_row = 0;  // the range of rows to copy; both are 0 for values without rows
  int64_t rows = 0;
  std::vector<GlobalId> optimizers;
  // Used by SaveService::Write: the file of the save for the elements, then for each state array,
  // as indices of OwnFiles::files.
  std::vector<size_t> files;
};

struct ExportedState {
  uint64_t steps = 0;
  std::vector<Tensor> arrays;  // as OwnerContents describes them
};

// A value and its state, both as they were between two steps.
struct ExportedItem {
  uint64_t version = 0;
  Tensor elements;
  std::vector<ExportedState> states;  // in the order of ExportItem::optimizers
};

struct Exported {
  std::vector<ExportedItem> items;
  uint64_t steps_accepted = 0;  // by all named optimizers of the owner together
};

// A range of bytes in one array of a value. Array 0 has the elements; the state arrays follow.
struct PieceRange {
  size_t array = 0;
  uint64_t first_byte = 0;
  uint64_t bytes = 0;
};

struct FetchedPiece {
  Buffer bytes;
  uint64_t steps_accepted = 0;  // as in Exported
};

// The files of a save that an owner is asked to write itself.
struct OwnFiles {
  std::string folder;  // the folder of the unfinished save
  std::string token;   // the token in that folder, by which the owner recognises it
  std::vector<checkpoint::FileSpec> files;
};

// A count of steps to write into a file of a save.
struct StepCount {
  size_t file = 0;
  float steps = 0;
};

struct ImportedState {
  std::string optimizer;
  uint64_t steps = 0;
  std::vector<std::string> slots;
  std::vector<Tensor> arrays;  // one for each slot
};

struct ImportItem {
  std::string name;
  int64_t first_row = 0;  // for rows: the first one; `elements` says how many there are
  Tensor elements;
  std::vector<ImportedState> states;
  // If its counter is not 0, the elements and the arrays of state are in this room on the owner,
  // and `elements` and the arrays above are not used.
  GlobalId room;
  // The life that the load has given to the optimizers of the states. The item is refused if one of
  // them has another life by then. Without an id, lives are not compared.
  GlobalId load;
};

// The progress of a saved optimizer.
struct RestoredOptimizer {
  std::string name;
  uint64_t steps_accepted = 0;
  double loss_scale = 0;
  uint64_t good_steps = 0;
  // If true, the state was not imported, and the count of steps and the loss scale stay as they
  // are.
  bool kept = false;
  optim::OptimizerLife life;  // the life that begins with the load
  // The life that the part must still have: the one that the load has given to it, or, if the part
  // is kept, the one in which it was found after steps_accepted steps. Without an id, lives are not
  // compared.
  GlobalId judged = {};
};

}  // namespace psd::services
