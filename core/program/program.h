#pragma once

// Programs: sequences of operators in static single assignment form, as data. A program runs on the
// worker that hosts its values. It is differentiable, it is bounded in size, memory, depth and
// time, and it executes nothing but operators. A call of a single operator is a program too.

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

namespace psd::program {

class ProgramSizes;  // the sizes of the results of a run (program_sizes.h)

// One call of an operator. Its result gets the next value number.
struct Instruction {
  std::string op;               // a name in the OperatorRegistry
  std::vector<int32_t> inputs;  // value numbers below its own
  Attributes attributes;
};

// The values of a program are numbered: 0 to num_inputs - 1 are the arguments, and then each
// instruction in order has one number. An instruction may only use numbers below its own, so a
// program cannot be cyclic.
struct Program {
  int32_t num_inputs = 0;
  std::vector<Instruction> instructions;
  std::vector<int32_t> outputs;  // value numbers; may repeat, and may be arguments
};

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

// A hash of 128 bits over the canonical encoding of a program. Equal programs have equal
// fingerprints on every machine.
struct Fingerprint {
  uint64_t high = 0;
  uint64_t low = 0;
  std::string ToString() const;
  friend bool operator==(const Fingerprint& a, const Fingerprint& b) {
    return a.high == b.high && a.low == b.low;
  }
  template <typename H>
  friend H AbslHashValue(H h, const Fingerprint& f) {
    return H::combine(std::move(h), f.high, f.low);
  }
};
Fingerprint FingerprintOf(const Program& program);

// Returns the canonical encoding, from which the fingerprint is computed.
std::string CanonicalBytes(const Program& program);

// Returns the memory that a checked program takes, as closely as it can be counted.
size_t MemoryBytes(const Program& program);

// Builds a program call by call. Mistakes are reported by Build. Thread-compatible.
class ProgramBuilder {
 public:
  using Ref = int32_t;
  Ref Input();  // must be called for all inputs before the first Call
  Ref Call(std::string op, std::vector<Ref> inputs, Attributes attributes = {});
  // Errors: INVALID_ARGUMENT for a Ref that this builder did not return, and for an Input after a
  // Call.
  absl::StatusOr<Program> Build(std::vector<Ref> outputs);

 private:
  Program program_;
  absl::Status status_;
};

}  // namespace psd::program
