#pragma once

// Programs: sequences of operators in static single assignment form, as data. A program runs on the
// worker that hosts its values. It is differentiable, it is bounded in size, memory, depth and
// time, and it executes nothing but operators. A call of a single operator is a program too.
// core/autograd/operators.h lists the operators.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/autograd/attributes.h"

namespace psd::program {

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
