#pragma once

// The history of many operators that ran one after the other, as one node of the graph: what each
// of them recorded, in the order of the run. Its backward is one walk from the end, without nodes
// to find and count. A program is recorded so: nobody sees what happens inside it.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/autograd/node.h"
#include "core/autograd/variable.h"
#include "core/base/small_memory.h"
#include "core/tensor/tensor.h"

namespace psd {

// For which of an operator's arguments gradients are wanted. A value.
class Wanted {
 public:
  void Add(size_t argument) {
    if (argument < kKept) bits_ |= uint64_t{1} << argument;
  }
  // True too for arguments so far behind that nothing is kept of them.
  bool Has(size_t argument) const { return argument >= kKept || (bits_ >> argument & 1) != 0; }

 private:
  static constexpr size_t kKept = 64;

  uint64_t bits_ = 0;
};

// How one pass uses what an operator has saved.
struct SavedUse {
  absl::string_view name;  // the operator's, for errors
  bool retain = false;     // leave it to later passes
};

// What one operator keeps of its run for its gradients. Thread-safe.
class RecordedFunction {
 public:
  RecordedFunction() = default;
  virtual ~RecordedFunction() = default;
  RecordedFunction(const RecordedFunction&) = delete;
  RecordedFunction& operator=(const RecordedFunction&) = delete;
  static void* operator new(size_t bytes) { return TakeSmallMemory(bytes); }
  static void operator delete(void* address, size_t bytes) { GiveSmallMemory(address, bytes); }

  // The gradients of the arguments into `results` (one each, undefined so far), from `g`, that of
  // the result. Those not wanted may stay undefined. Gives up what was saved unless `use.retain`.
  // Errors: SavedValuesFreed when that was given up before; whatever the math says.
  virtual absl::Status Gradients(const SavedUse& use, const Tensor& g, Wanted wanted,
                                 absl::Span<Tensor> results) = 0;
};

// Records the operators that run on its thread while it lives. Thread-compatible; one at a time is
// current on a thread, the newest.
class TapeRecorder {
 public:
  // `operators`: how many are expected.
  explicit TapeRecorder(size_t operators);
  ~TapeRecorder();
  TapeRecorder(const TapeRecorder&) = delete;
  TapeRecorder& operator=(const TapeRecorder&) = delete;

  // The one that records on this thread; null if none does.
  static TapeRecorder* Current();

  // `outside` as the operators see it that are recorded here.
  Variable Enter(const Variable& outside);
  // The result of an operator `name` (a literal). Requires: all inputs are ok.
  Variable Record(absl::string_view name, absl::Span<const Variable* const> inputs, Tensor result,
                  std::unique_ptr<RecordedFunction> function);
  // `results` as they are seen outside; nothing is recorded afterwards. What none of them depends
  // on is forgotten.
  std::vector<Variable> Leave(const std::vector<Variable>& results);

 private:
  class Tape;

  std::shared_ptr<Tape> tape_;     // shared with the variables that it recorded
  std::vector<Variable> entered_;  // by the number of their edge
  TapeRecorder* const previous_;
};

}  // namespace psd
