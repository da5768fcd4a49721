#pragma once

// Records many operators that run one after the other as a single node of the graph. The backward
// of this node is one walk over the operators from the last to the first, without a graph to search
// and count. Programs are recorded this way, because no code outside sees their inner variables.

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

// The set of an operator's arguments whose gradients are wanted. A value.
class Wanted {
 public:
  void Add(size_t argument) {
    if (argument < kKept) bits_ |= uint64_t{1} << argument;
  }
  // Arguments from number kKept on are not stored; they always count as wanted.
  bool Has(size_t argument) const { return argument >= kKept || (bits_ >> argument & 1) != 0; }

 private:
  static constexpr size_t kKept = 64;

  uint64_t bits_ = 0;
};

// Says how one pass uses the values that an operator has saved.
struct SavedUse {
  absl::string_view name;  // the name of the operator, for errors
  bool retain = false;     // whether the values are kept for later passes
};

// The values that one operator has saved for its gradients, with the function that computes the
// gradients. Thread-safe.
class RecordedFunction {
 public:
  RecordedFunction() = default;
  virtual ~RecordedFunction() = default;
  RecordedFunction(const RecordedFunction&) = delete;
  RecordedFunction& operator=(const RecordedFunction&) = delete;
  static void* operator new(size_t bytes) { return TakeSmallMemory(bytes); }
  static void operator delete(void* address, size_t bytes) { GiveSmallMemory(address, bytes); }

  // Computes the gradients of the arguments from `g`, the gradient of the result. `results` has one
  // element for each argument, undefined before the call; those that are not wanted may stay
  // undefined. Frees the saved values unless `use.retain`. Errors: SavedValuesFreed if they were
  // freed before; those of the computation.
  virtual absl::Status Gradients(const SavedUse& use, const Tensor& g, Wanted wanted,
                                 absl::Span<Tensor> results) = 0;
};

// Records the operators that run on its thread, from its construction to Leave or its destruction.
// Recorders may be nested; the innermost records. Confined to its thread.
class TapeRecorder {
 public:
  // `operators` is the expected number of operators.
  explicit TapeRecorder(size_t operators);
  ~TapeRecorder();
  TapeRecorder(const TapeRecorder&) = delete;
  TapeRecorder& operator=(const TapeRecorder&) = delete;

  // Returns the recorder that records on this thread, or null if none does.
  static TapeRecorder* Current();

  // Returns `outside` as a variable for the operators that are recorded.
  Variable Enter(const Variable& outside);
  // Records an operator with the result `result`, and returns the result as a variable. `name` is a
  // literal. Requires: all inputs are ok.
  Variable Record(absl::string_view name, absl::Span<const Variable* const> inputs, Tensor result,
                  std::unique_ptr<RecordedFunction> function);
  // Ends the recording and returns `results` as variables for the code outside. Operators on which
  // none of the results depends are forgotten.
  std::vector<Variable> Leave(const std::vector<Variable>& results);

 private:
  class Tape;

  std::shared_ptr<Tape> tape_;  // shared with the variables that it recorded
  TapeRecorder* const previous_;
};

}  // namespace psd
