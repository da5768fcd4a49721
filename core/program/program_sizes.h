#pragma once

// The sizes of a program's results for arguments of certain shapes and dtypes. One run infers them,
// and later runs with such arguments need not ask every operator again.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "core/autograd/variable.h"
#include "core/tensor/dtype.h"
#include "core/tensor/shape.h"

namespace psd::program {

struct InstructionSize {
  int64_t result_bytes = 0;
  int64_t work = 0;  // a rough measure of the time it takes (WorkOf in run_program.cc)
};

// Built by one run, and shared with later runs once it is complete. Thread-compatible.
class ProgramSizes {
 public:
  // Requires: all inputs are valid.
  ProgramSizes(absl::Span<const Variable> inputs, size_t instructions);

  // Whether a run with these inputs would find the same sizes.
  bool Fits(absl::Span<const Variable> inputs) const;

  // Adds the size of the next instruction.
  void Add(InstructionSize size) { sizes_.push_back(size); }
  const InstructionSize& operator[](size_t instruction) const { return sizes_[instruction]; }

 private:
  struct Input {
    Shape shape;
    DType dtype;
  };
  std::vector<Input> inputs_;
  std::vector<InstructionSize> sizes_;  // by instruction
};

}  // namespace psd::program
