#pragma once

// The index of a save, which describes everything that the save holds.
//
// A save is a folder with safetensors files and `index.json`. The elements of values are in some
// files, as tensors with the values' names. The state of optimizers is in other files, as tensors
// with the names of PyTorch's state_dict: "state.<index>.<slot>", where <index> counts the
// optimizer's parameters, and "state.<index>.step".

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
  std::string xxh128;  // the checksum of the whole file, see xxh128.h
};

enum class ValueKind {
  kParameter,  // a parameter with versions; may have optimizer state
  kTensor,     // any other named dense tensor
  kRows,       // an embedding table, updated in place; may have optimizer state
};

struct SavedValue {
  std::string owner;
  std::string name;  // also the name of the tensor in the file
  ValueKind kind = ValueKind::kParameter;
  DType dtype = DType::kF32;
  Shape shape;
  bool requires_grad = false;
  uint64_t version = 0;  // its version when it was saved
  std::string file;
};

// Errors: INVALID_ARGUMENT, naming the value, if its elements or its shape do not fit its kind:
// parameters and rows have floating elements; rows have a shape [rows, width] that is not empty.
absl::Status CheckKind(const SavedValue& value);

// One array of state.
struct SavedSlot {
  std::string name;  // for example "exp_avg"
  std::string file;
};

// One parameter of an optimizer, and its state.
struct SavedState {
  std::string owner;
  std::string parameter;
  size_t group = 0;    // the number of its group in the optimizer
  uint64_t steps = 0;  // the steps that this parameter has taken
  std::vector<SavedSlot> slots;
  std::string file;  // the file with the count of steps, as a tensor
};

// Parameters of an optimizer with the same options.
struct SavedGroup {
  std::map<std::string, double> options;  // when it was saved
  // The options at creation. All trainers that share the optimizer must give these.
  std::map<std::string, double> created_with;

  friend bool operator==(const SavedGroup& a, const SavedGroup& b) {
    return a.options == b.options && a.created_with == b.created_with;
  }
};

// The part of an optimizer on one owner.
struct SavedPart {
  std::string owner;
  std::string life;  // the life at the time of the save, see core/optim/owner/optimizer_life.h
  uint64_t steps_accepted = 0;
};

// One named optimizer, on all of its owners.
struct SavedOptimizer {
  std::string name;
  std::string type;
  std::vector<SavedGroup> groups;  // at least one
  // The fields of schedule, loss scaling and mode that differ from their defaults (see
  // core/optim/options/settings_fields.h).
  std::map<std::string, double> settings;
  uint64_t steps_accepted = 0;
  double loss_scale = 0;               // 0: losses are not scaled
  uint64_t good_steps = 0;             // good steps in a row with this loss scale
  std::vector<SavedPart> parts;        // one for each owner of a parameter
  std::vector<SavedState> parameters;  // a parameter's index here is the <index> of its tensors
};

struct CheckpointIndex {
  std::string created;  // UTC, "2026-11-21T14:36:34Z"
  std::string psd_version;
  std::vector<SavedFile> files;
  std::vector<SavedValue> values;
  std::vector<SavedOptimizer> optimizers;
  // The named values that the save does not hold, for example "owner0: 'replay' (replay_buffer)".
  std::vector<std::string> left_out;
};

// Returns, for example, "state.3.exp_avg".
std::string StateTensorName(size_t index, absl::string_view slot);
// The slot of a parameter's count of steps, which is one f32 as in PyTorch.
inline constexpr absl::string_view kStepSlot = "step";

}  // namespace psd::checkpoint
