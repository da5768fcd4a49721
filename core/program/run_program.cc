#include "core/program/run_program.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/autograd/creation_scope.h"
#include "core/autograd/operators.h"
#include "core/autograd/tape.h"
#include "core/base/device.h"
#include "core/base/status.h"
#include "core/program/program_sizes.h"
#include "core/tensor/dtype.h"

namespace psd::program {
namespace {

// `cancelled` is called again after this much work; the call takes as long as a small operator.
// Work is measured in bytes that are read and written, with a minimum for each instruction. This
// much work takes well below a millisecond.
constexpr int64_t kMuchWork = int64_t{64} << 10;
constexpr int64_t kLeastWork = int64_t{1} << 10;

int64_t WorkOf(int64_t result_bytes, absl::Span<const Variable* const> operands) {
  int64_t work = kLeastWork + result_bytes;
  for (const Variable* operand : operands) {
    work = std::min(work, kMuchWork);
    work += static_cast<int64_t>(operand->tensor().NumBytes());
  }
  return std::min(work, kMuchWork);
}

bool AllValid(absl::Span<const Variable> inputs) {
  return std::all_of(inputs.begin(), inputs.end(), [](const Variable& v) { return v.ok(); });
}

// One run of a program. It holds the values by number and drops each after its last use.
class Run {
 public:
  // `tape` is null if no history is recorded.
  Run(const CheckedProgram& checked, const ProgramLimits& limits, absl::Span<const Variable> inputs,
      TapeRecorder* tape)
      : checked_(checked),
        program_(checked.program()),
        limits_(limits),
        known_(checked.SizesFor(inputs)) {
    if (known_ == nullptr && AllValid(inputs))
      inferred_ = std::make_shared<ProgramSizes>(inputs, program_.instructions.size());
    values_.reserve(inputs.size() + program_.instructions.size());
    if (tape == nullptr) {
      values_.assign(inputs.begin(), inputs.end());
    } else {
      for (const Variable& input : inputs) values_.push_back(tape->Enter(input));
    }
    bytes_.resize(values_.capacity());
    CountUses();
  }

  absl::Status Step(size_t number) {
    const Instruction& instruction = program_.instructions[number];
    absl::InlinedVector<const Variable*, 4> operands;
    for (int32_t input : instruction.inputs) operands.push_back(&values_[input]);
    InstructionSize size;
    if (known_ != nullptr) {
      size = (*known_)[number];
    } else {
      PSD_ASSIGN_OR_RETURN(size, Infer(number, operands));
    }
    PSD_RETURN_IF_ERROR(Reserve(size.result_bytes));
    work_ += size.work;
    Variable result = checked_.OperatorOf(number).run(operands, instruction.attributes);
    if (!result.ok()) return result.status();
    const size_t own = static_cast<size_t>(program_.num_inputs) + number;
    // A result with history may stay in memory after it is dropped here, so dropping it frees
    // nothing.
    if (!result.requires_grad()) bytes_[own] = size.result_bytes;
    values_.push_back(std::move(result));
    for (int32_t input : instruction.inputs) Release(input);
    if (uses_[own] == 0) Drop(own);
    return absl::OkStatus();
  }

  // Whether enough work was done since `cancelled` was last called to call it again. If so, the
  // count starts again.
  bool WorkedMuch() {
    if (work_ < kMuchWork) return false;
    work_ = 0;
    return true;
  }
  // Stores the inferred sizes for later runs with such inputs. To be called after the last step.
  void Remember() const {
    if (inferred_ != nullptr) checked_.Remember(inferred_);
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
  absl::StatusOr<InstructionSize> Infer(size_t number, absl::Span<const Variable* const> operands) {
    PSD_ASSIGN_OR_RETURN(const int64_t bytes,
                         OutputBytes(checked_.OperatorOf(number), operands,
                                     program_.instructions[number].attributes));
    const InstructionSize size = {bytes, WorkOf(bytes, operands)};
    if (inferred_ != nullptr) inferred_->Add(size);
    return size;
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
    const Variable dropped = std::move(values_[number]);
    live_bytes_ -= bytes_[number];
  }

  const CheckedProgram& checked_;
  const Program& program_;
  const ProgramLimits& limits_;
  std::vector<Variable> values_;
  std::vector<int64_t> bytes_;  // the bytes that dropping each value frees
  std::vector<uint32_t> uses_;  // the remaining uses of each value
  int64_t live_bytes_ = 0;
  int64_t work_ = kMuchWork;                         // work since `cancelled` was called
  const std::shared_ptr<const ProgramSizes> known_;  // shared with the program; null if not known
  std::shared_ptr<ProgramSizes> inferred_;           // null if known, or if an input is invalid
};

// Returns the device on which operators without inputs create; null is the host.
Device* CreatesOn(absl::Span<const Variable> inputs) {
  if (inputs.empty()) return CreationScope::CurrentDevice();
  std::optional<Device*> shared;
  for (const Variable& input : inputs) {
    if (!input.ok() || !IsFloating(input.dtype())) continue;
    if (shared.value_or(input.tensor().device()) != input.tensor().device()) return nullptr;
    shared = input.tensor().device();
  }
  return shared.value_or(nullptr);
}

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
  const CreationScope scope(CreatesOn(inputs));
  Run run(checked, limits, inputs, tape.has_value() ? &*tape : nullptr);
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    if (run.WorkedMuch() && cancelled()) {
      return absl::CancelledError(absl::StrCat("cancelled before ", InstructionName(program, i)));
    }
    absl::Status status = run.Step(i);
    if (!status.ok()) return Annotate(status, InstructionName(program, i));
  }
  run.Remember();
  return tape.has_value() ? tape->Leave(run.Outputs()) : run.Outputs();
}

}  // namespace psd::program
