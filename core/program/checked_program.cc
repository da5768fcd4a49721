#include "core/program/checked_program.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/base/remedy.h"
#include "core/base/status.h"
#include "core/program/program_sizes.h"

namespace psd::program {
namespace {

absl::Status OverLimit(absl::string_view what, size_t size, size_t limit) {
  return WithRemedy(absl::ResourceExhaustedError(absl::StrCat("the program has ", size, " ", what,
                                                              ", the limit is ", limit)),
                    "split it into several calls");
}

size_t AttributeItems(const Attributes& attributes) {
  size_t items = 0;
  for (const auto& [name, value] : attributes) {
    const auto* list = std::get_if<std::vector<int64_t>>(&value);
    items += list == nullptr ? 1 : 1 + list->size();
  }
  return items;
}

absl::Status CheckSizes(const Program& program, const ProgramLimits& limits) {
  if (program.num_inputs < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("the program takes ", program.num_inputs, " arguments"));
  }
  if (static_cast<size_t>(program.num_inputs) > limits.max_inputs) {
    return OverLimit("arguments", program.num_inputs, limits.max_inputs);
  }
  if (program.instructions.size() > limits.max_instructions) {
    return OverLimit("instructions", program.instructions.size(), limits.max_instructions);
  }
  if (program.outputs.size() > limits.max_outputs) {
    return OverLimit("results", program.outputs.size(), limits.max_outputs);
  }
  size_t items = 0;
  for (const Instruction& instruction : program.instructions) {
    items += AttributeItems(instruction.attributes);
    if (instruction.inputs.size() > limits.max_inputs) {
      return OverLimit("inputs of one instruction", instruction.inputs.size(), limits.max_inputs);
    }
    if (instruction.attributes.size() > limits.max_attributes) {
      return OverLimit("attributes of one instruction", instruction.attributes.size(),
                       limits.max_attributes);
    }
  }
  if (items > limits.max_attribute_items) {
    return OverLimit("attribute items", items, limits.max_attribute_items);
  }
  return absl::OkStatus();
}

absl::Status CheckOutputs(const Program& program) {
  const int64_t values =
      int64_t{program.num_inputs} + static_cast<int64_t>(program.instructions.size());
  for (size_t i = 0; i < program.outputs.size(); ++i) {
    if (program.outputs[i] >= 0 && program.outputs[i] < values) continue;
    return absl::InvalidArgumentError(absl::StrCat("result ", i, " of the program is value ",
                                                   program.outputs[i], " of ", values));
  }
  return absl::OkStatus();
}

}  // namespace

std::string InstructionName(const Program& program, size_t number) {
  return absl::StrCat("instruction ", number, " (", program.instructions[number].op, ")");
}

absl::Status CheckInputs(const Program& program, size_t number) {
  const int64_t own = int64_t{program.num_inputs} + static_cast<int64_t>(number);
  for (int32_t input : program.instructions[number].inputs) {
    if (input >= 0 && input < own) continue;
    const std::string wrong =
        absl::StrCat(InstructionName(program, number), " takes value ", input);
    if (own == 0) {
      return WithRemedy(
          absl::InvalidArgumentError(absl::StrCat(wrong, ", and none comes before it")),
          "give the program an input, or let the instruction take no value");
    }
    return WithRemedy(absl::InvalidArgumentError(wrong),
                      absl::StrCat("it may take values 0 to ", own - 1, ", which come before it"));
  }
  return absl::OkStatus();
}

absl::StatusOr<CheckedProgram> CheckedProgram::Create(Program program,
                                                      const OperatorRegistry& operators,
                                                      const ProgramLimits& limits) {
  PSD_RETURN_IF_ERROR(CheckSizes(program, limits));
  PSD_RETURN_IF_ERROR(CheckOutputs(program));
  CheckedProgram checked;
  checked.operators_.reserve(program.instructions.size());
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    const Instruction& instruction = program.instructions[i];
    PSD_RETURN_IF_ERROR(CheckInputs(program, i));
    absl::StatusOr<const OperatorSpec*> spec = operators.Find(instruction.op);
    if (!spec.ok()) return Annotate(spec.status(), InstructionName(program, i));
    absl::Status call = CheckCall(**spec, instruction.inputs.size(), instruction.attributes);
    if (!call.ok()) return Annotate(call, InstructionName(program, i));
    checked.operators_.push_back(*spec);
  }
  checked.program_ = std::move(program);
  return checked;
}

std::shared_ptr<const ProgramSizes> CheckedProgram::SizesFor(
    absl::Span<const Variable> inputs) const {
  std::shared_ptr<const ProgramSizes> sizes = std::atomic_load(&sizes_);
  return sizes != nullptr && sizes->Fits(inputs) ? sizes : nullptr;
}

void CheckedProgram::Remember(std::shared_ptr<const ProgramSizes> sizes) const {
  // Sizes with more inputs than the program has instructions are not kept, so that they stay in
  // proportion to the program, whose size ProgramCache bounds.
  if (program_.instructions.size() < static_cast<size_t>(program_.num_inputs)) return;
  std::atomic_store(&sizes_, std::move(sizes));
}

size_t MemoryBytes(const Program& program) {
  // For each piece on the heap: what the allocator adds, and the links of a node.
  constexpr size_t kPieceBytes = 48;
  size_t bytes = sizeof(CheckedProgram) + program.outputs.capacity() * sizeof(int32_t);
  for (const Instruction& instruction : program.instructions) {
    // With the pointer to its operator, and its entry in the sizes of an earlier run.
    bytes += sizeof(instruction) + 2 * kPieceBytes + instruction.op.capacity() +
             instruction.inputs.capacity() * sizeof(int32_t);
    for (const auto& [name, value] : instruction.attributes) {
      bytes += sizeof(name) + sizeof(value) + 2 * kPieceBytes + name.capacity();
      if (const auto* list = std::get_if<std::vector<int64_t>>(&value))
        bytes += list->capacity() * sizeof(int64_t);
    }
  }
  return bytes;
}

}  // namespace psd::program
