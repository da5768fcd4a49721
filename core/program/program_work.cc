#include "core/program/program_work.h"

#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "core/autograd/operators.h"

namespace psd::program {

bool WorkIsAtMost(int64_t limit, const CheckedProgram& program, absl::Span<const Variable> inputs) {
  const std::vector<Instruction>& instructions = program.program().instructions;
  if (inputs.size() != static_cast<size_t>(program.program().num_inputs)) return false;
  std::vector<Shape> shapes;  // by value number
  shapes.reserve(inputs.size() + instructions.size());
  for (const Variable& input : inputs) {
    if (!input.ok()) return false;
    shapes.push_back(input.shape());
  }
  for (size_t i = 0; i < instructions.size(); ++i) {
    absl::InlinedVector<const Shape*, 4> operands;
    for (int32_t input : instructions[i].inputs) operands.push_back(&shapes[input]);
    const OperatorSpec& spec = program.OperatorOf(i);
    absl::StatusOr<Shape> output = spec.output_shape(operands, instructions[i].attributes);
    if (!output.ok()) return false;
    limit -= OperatorWork(spec, operands, *output);
    if (limit < 0) return false;
    shapes.push_back(*std::move(output));
  }
  return true;
}

}  // namespace psd::program
