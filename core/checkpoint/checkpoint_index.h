#pragma once

// What a save holds, in words: the content of its index.
//
// A save is a folder with safetensors files and `index.json`. The elements of values lie in files
// of their own, under the values' names. The state of an optimizer lies in others, under the names
// of PyTorch's state_dict: "state.<index>.<slot>", where <index> counts the optimizer's parameters,
// and "state.<index>.step".

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "core/tensor/dtype.h"
#include "core/tensor/shape.h"

namespace psd::checkpoint {

inline constexpr absl::string_view kIndexFileName = "index.json";
inline constexpr uint64_t kIndexFormatVersion = 2;
inline constexpr uint64_t kMaxIndexBytes = uint64_t{256} << 20;

struct SavedFile {
  std::string name;  // within the save's folder
  uint64_t bytes = 0;
  std::string xxh128;  // of the whole file, see xxh128.h
};

enum class ValueKind {
  kParameter,  // moves through versions; may have optimizer state
  kTensor,     // any other named dense tensor
  kRows,       // an embedding table, updated in place; may have optimizer state
};

struct SavedValue {
  std::string owner;
  std::string name;  // also the tensor's in its file
  ValueKind kind = ValueKind::kParameter;
  DType dtype = DType::kF32;
  Shape shape;
  bool requires_grad = false;
  uint64_t version = 0;  // when it was saved
  std::string file;
};

// Errors: INVALID_ARGUMENT, naming the value, if its elements or its shape do not fit its kind:
// parameters and rows have floating elements; rows have a shape [rows, width] that is not empty.
absl::Status CheckKind(const SavedValue& value);

// One array of state.
struct SavedSlot {
  std::string name;  // "exp_avg"
  std::string file;
};

// One parameter of an optimizer, and its state.
struct SavedState {
  std::string owner;
  std::string parameter;
  size_t group = 0;    // of the optimizer's
  uint64_t steps = 0;  // that this parameter has taken
  std::vector<SavedSlot> slots;
  std::string file;  // holds the count of steps, as a tensor
};

// Parameters of an optimizer with the same options.
struct SavedGroup {
  std::map<std::string, double> options;       // when it was saved
  std::map<std::string, double> created_with;  // what who shares the optimizer must give

  friend bool operator==(const SavedGroup& a, const SavedGroup& b) {
    return a.options == b.options && a.created_with == b.created_with;
  }
};

// What one owner has of an optimizer.
struct SavedPart {
  std::string owner;
  std::string life;  // in which it was saved, see core/optim/owner/optimizer_life.h
  uint64_t steps_accepted = 0;
};

// One named optimizer, on all of its owners.
struct SavedOptimizer {
  std::string name;
  std::string type;
  std::vector<SavedGroup> groups;  // at least one
  // Schedule, loss scaling and mode, where they are not at their defaults (see
  // core/optim/options/settings_fields.h).
  std::map<std::string, double> settings;
  uint64_t steps_accepted = 0;
  double loss_scale = 0;               // 0: losses are not scaled
  uint64_t good_steps = 0;             // in a row, with this loss scale
  std::vector<SavedPart> parts;        // one for each owner of a parameter
  std::vector<SavedState> parameters;  // in the optimizer's order: the <index> of their tensors
};

struct CheckpointIndex {
  std::string created;  // UTC, "2026-11-21T14:36:34Z"
  std::string psd_version;
  std::vector<SavedFile> files;
  std::vector<SavedValue> values;
  std::vector<SavedOptimizer> optimizers;
  // Named values that a save does not hold: "owner0: 'replay' (replay_buffer)".
  std::vector<std::string> left_out;
};

// "state.3.exp_avg".
std::string StateTensorName(size_t index, absl::string_view slot);
// The slot under which a parameter's count of steps lies, as PyTorch has it: one f32.
inline constexpr absl::string_view kStepSlot = "step";

}  // namespace psd::checkpoint
