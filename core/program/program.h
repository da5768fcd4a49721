#pragma once

// Programs: operators in static single assignment, as data. They run on the worker that hosts the
// values, are differentiable, and are bounded in size, memory, depth and time; they execute nothing
// but operators. A call of one operator is a program of one instruction.

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
#include "core/program/program_sizes.h"

namespace psd::program {

// One operator call. Its result is the next value number.
struct Instruction {
  std::string op;               // a name in the OperatorRegistry
  std::vector<int32_t> inputs;  // value numbers below its own
  Attributes attributes;
};

// Value numbers: 0 … num_inputs-1 are the arguments, then one per instruction, in order. So a
// program cannot be cyclic; one that names a number at or beyond its own is refused.
struct Program {
  int32_t num_inputs = 0;
  std::vector<Instruction> instructions;
  std::vector<int32_t> outputs;  // value numbers; may repeat, may be arguments
};

struct ProgramLimits {
  size_t max_instructions = 10'000;
  size_t max_inputs = 100'000;
  size_t max_outputs = 100'000;
  size_t max_attributes = 64;                   // of one instruction
  size_t max_attribute_items = 1'000'000;       // over all attributes
  int64_t max_result_bytes = int64_t{4} << 30;  // of one instruction's result
  int64_t max_live_bytes = int64_t{16} << 30;   // of all results alive at once
};

// "instruction 3 (mul)".
std::string InstructionName(const Program& program, size_t number);

// A program that may run: every check that needs no arguments has been made, every operator found.
// Immutable but for what it remembers of runs; thread-safe. The registry outlives it.
class CheckedProgram {
 public:
  // Errors: INVALID_ARGUMENT naming the instruction's number and operator (unknown operator: the
  // nearest known one); RESOURCE_EXHAUSTED naming limit and size.
  static absl::StatusOr<CheckedProgram> Create(Program program, const OperatorRegistry& operators,
                                               const ProgramLimits& limits);

  const Program& program() const { return program_; }
  const OperatorSpec& OperatorOf(size_t instruction) const { return *operators_[instruction]; }

  // What the last run that was remembered found; null if it had inputs of other shapes or dtypes.
  std::shared_ptr<const ProgramSizes> SizesFor(absl::Span<const Variable> inputs) const;
  void Remember(std::shared_ptr<const ProgramSizes> sizes) const;

 private:
  CheckedProgram() = default;

  Program program_;
  std::vector<const OperatorSpec*> operators_;  // by instruction
  // Shared with runs that use it; read and written by std::atomic_load and std::atomic_store.
  mutable std::shared_ptr<const ProgramSizes> sizes_;
};

// 128 bits over a canonical encoding: equal programs have equal fingerprints on every machine.
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

// The bytes behind the fingerprint: a rough measure of the program's size.
std::string CanonicalBytes(const Program& program);

// Builds a program call by call. Thread-compatible. Mistakes are kept and told by Build.
class ProgramBuilder {
 public:
  using Ref = int32_t;
  Ref Input();  // all inputs first
  Ref Call(std::string op, std::vector<Ref> inputs, Attributes attributes = {});
  // Errors: INVALID_ARGUMENT for a Ref that is none of this builder's, an Input after a Call.
  absl::StatusOr<Program> Build(std::vector<Ref> outputs);

 private:
  Program program_;
  absl::Status status_;
};

}  // namespace psd::program
