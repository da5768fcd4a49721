#pragma once

// The checks of a program that may have come from outside, before it runs.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/autograd/operators.h"
#include "core/autograd/variable.h"
#include "core/program/program.h"

namespace psd::program {

class ProgramSizes;  // the sizes of the results of a run (program_sizes.h)

struct ProgramLimits {
  size_t max_instructions = 10'000;
  size_t max_inputs = 100'000;
  size_t max_outputs = 100'000;
  size_t max_attributes = 64;                   // limit for one instruction
  size_t max_attribute_items = 1'000'000;       // limit for all attributes of the program
  int64_t max_result_bytes = int64_t{4} << 30;  // limit for one instruction's result
  int64_t max_live_bytes = int64_t{16} << 30;   // limit for all results that are alive at once
};

// Returns a name for an instruction for messages, for example "instruction 3 (mul)".
std::string InstructionName(const Program& program, size_t number);

// Checks that instruction `number` takes only values that come before its own.
// Errors: INVALID_ARGUMENT naming the instruction and the value.
absl::Status CheckInputs(const Program& program, size_t number);

// A program that has passed all checks that are possible without its arguments, with the operators
// that it calls. It remembers the sizes of one earlier run, and is otherwise immutable.
// Thread-safe. The operators' registry must outlive it.
class CheckedProgram {
 public:
  // Errors: INVALID_ARGUMENT naming the instruction's number and operator (for an unknown operator
  // also the nearest known one); RESOURCE_EXHAUSTED naming the limit and the size.
  static absl::StatusOr<CheckedProgram> Create(Program program, const OperatorRegistry& operators,
                                               const ProgramLimits& limits);

  const Program& program() const { return program_; }
  const OperatorSpec& OperatorOf(size_t instruction) const { return *operators_[instruction]; }

  // Returns the sizes that were last passed to Remember, or null if they are for inputs of other
  // shapes or dtypes.
  std::shared_ptr<const ProgramSizes> SizesFor(absl::Span<const Variable> inputs) const;
  void Remember(std::shared_ptr<const ProgramSizes> sizes) const;

 private:
  CheckedProgram() = default;

  Program program_;
  std::vector<const OperatorSpec*> operators_;  // by instruction
  // Shared with the runs that use it. Read and written by std::atomic_load and std::atomic_store.
  mutable std::shared_ptr<const ProgramSizes> sizes_;
};

// Returns the memory that a checked program takes, as closely as it can be counted.
size_t MemoryBytes(const Program& program);

}  // namespace psd::program
