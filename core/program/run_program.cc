#include "core/program/run_program.h"

#include <optional>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/autograd/operators.h"
#include "core/autograd/tape.h"
#include "core/base/status.h"

namespace psd::program {
namespace {

// One run: values by number, dropped after their last use.
class Run {
 public:
  // `tape`: null for no history.
  Run(const CheckedProgram& checked, const ProgramLimits& limits, absl::Span<const Variable> inputs,
      TapeRecorder* tape)
      : checked_(checked), program_(checked.program()), limits_(limits) {
    values_.reserve(inputs.size() + program_.instructions.size());
    for (const Variable& input : inputs)
      values_.push_back(tape == nullptr ? input : tape->Enter(input));
    bytes_.resize(values_.capacity());
    CountUses();
  }

  absl::Status Step(size_t number) {
    const Instruction& instruction = program_.instructions[number];
    const OperatorSpec& spec = checked_.OperatorOf(number);
    absl::InlinedVector<const Variable*, 4> inputs;
    for (int32_t input : instruction.inputs) inputs.push_back(&values_[input]);
    PSD_ASSIGN_OR_RETURN(int64_t bytes, OutputBytes(spec, inputs, instruction.attributes));
    PSD_RETURN_IF_ERROR(Reserve(bytes));
    Variable result = spec.run(inputs, instruction.attributes);
    PSD_RETURN_IF_ERROR(result.status());
    // What history holds stays in memory when the value is dropped.
    if (!result.requires_grad()) bytes_[values_.size()] = bytes;
    values_.push_back(std::move(result));
    for (int32_t input : instruction.inputs) Release(input);
    if (uses_[values_.size() - 1] == 0) Drop(values_.size() - 1);
    return absl::OkStatus();
  }

  std::vector<Variable> Outputs() const {
    std::vector<Variable> outputs;
    outputs.reserve(program_.outputs.size());
    for (int32_t output : program_.outputs) outputs.push_back(values_[output]);
    return outputs;
  }

 private:
  void CountUses() {
    uses_.resize(values_.size() + program_.instructions.size());
    for (const Instruction& instruction : program_.instructions) {
      for (int32_t input : instruction.inputs) ++uses_[input];
    }
    for (int32_t output : program_.outputs) ++uses_[output];
  }
  absl::Status Reserve(int64_t bytes) {
    if (bytes > limits_.max_result_bytes) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "its result of ", bytes, " bytes exceeds the limit of ", limits_.max_result_bytes));
    }
    if (bytes > limits_.max_live_bytes - live_bytes_) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "its result of ", bytes, " bytes and the ", live_bytes_,
          " bytes of results still needed exceed the limit of ", limits_.max_live_bytes));
    }
    live_bytes_ += bytes;
    return absl::OkStatus();
  }
  void Release(int32_t number) {
    if (--uses_[number] == 0) Drop(number);
  }
  void Drop(size_t number) {
    values_[number] = Variable();
    live_bytes_ -= bytes_[number];
  }

  const CheckedProgram& checked_;
  const Program& program_;
  const ProgramLimits& limits_;
  std::vector<Variable> values_;
  std::vector<int64_t> bytes_;  // that dropping the value gives back
  std::vector<uint32_t> uses_;  // still to come
  int64_t live_bytes_ = 0;
};

}  // namespace

absl::StatusOr<std::vector<Variable>> RunProgram(const CheckedProgram& checked,
                                                 const ProgramLimits& limits,
                                                 absl::Span<const Variable> inputs,
                                                 absl::FunctionRef<bool()> cancelled) {
  const Program& program = checked.program();
  if (inputs.size() != static_cast<size_t>(program.num_inputs)) {
    return absl::InvalidArgumentError(absl::StrCat("the program takes ", program.num_inputs,
                                                   " arguments, ", inputs.size(), " were given"));
  }
  std::optional<TapeRecorder> tape;
  if (GradEnabled()) tape.emplace(inputs.size() + program.instructions.size());
  Run run(checked, limits, inputs, tape.has_value() ? &*tape : nullptr);
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    if (cancelled()) {
      return absl::CancelledError(absl::StrCat("cancelled before ", InstructionName(program, i)));
    }
    absl::Status status = run.Step(i);
    if (!status.ok()) return Annotate(status, InstructionName(program, i));
  }
  return tape.has_value() ? tape->Leave(run.Outputs()) : run.Outputs();
}

}  // namespace psd::program
