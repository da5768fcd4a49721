#include "core/program/program.h"

#include <openssl/sha.h>

#include <array>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
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

// Writes the canonical encoding: little-endian, a count before each list, no gaps. A program has
// exactly one encoding.
class Canonical {
 public:
  void U64(uint64_t v) {
    for (int i = 0; i < 8; ++i) bytes_.push_back(static_cast<char>(v >> 8 * i));
  }
  void Text(const std::string& text) {
    U64(text.size());
    bytes_ += text;
  }
  void Refs(const std::vector<int32_t>& refs) {
    U64(refs.size());
    for (int32_t ref : refs) U64(static_cast<uint64_t>(int64_t{ref}));
  }
  void Value(const AttributeValue& value) {
    U64(value.index());
    if (const auto* number = std::get_if<int64_t>(&value)) {
      U64(static_cast<uint64_t>(*number));
    } else if (const auto* real = std::get_if<double>(&value)) {
      uint64_t bits;
      std::memcpy(&bits, real, sizeof bits);
      U64(bits);
    } else if (const auto* list = std::get_if<std::vector<int64_t>>(&value)) {
      U64(list->size());
      for (int64_t item : *list) U64(static_cast<uint64_t>(item));
    }
  }
  std::string Take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

uint64_t LoadBig(const uint8_t* bytes) {
  uint64_t word = 0;
  for (int i = 0; i < 8; ++i) word = word << 8 | bytes[i];
  return word;
}

}  // namespace

std::string InstructionName(const Program& program, size_t number) {
  return absl::StrCat("instruction ", number, " (", program.instructions[number].op, ")");
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
  // Sizes with more inputs than the program has instructions are not kept. So they stay in
  // proportion to the program, whose size ProgramCache bounds.
  if (program_.instructions.size() < static_cast<size_t>(program_.num_inputs)) return;
  std::atomic_store(&sizes_, std::move(sizes));
}

std::string Fingerprint::ToString() const {
  return absl::StrFormat("%016x%016x", high, low);
}

size_t MemoryBytes(const Program& program) {
  // The cost of each piece on the heap: the allocator's overhead, and the links of a node.
  constexpr size_t kPieceBytes = 48;
  size_t bytes = sizeof(CheckedProgram) + program.outputs.capacity() * sizeof(int32_t);
  for (const Instruction& instruction : program.instructions) {
    // Includes the pointer to its operator, and its entry in the sizes of an earlier run.
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

std::string CanonicalBytes(const Program& program) {
  Canonical canonical;
  canonical.U64(1);  // version of this encoding
  canonical.U64(static_cast<uint64_t>(int64_t{program.num_inputs}));
  canonical.U64(program.instructions.size());
  for (const Instruction& instruction : program.instructions) {
    canonical.Text(instruction.op);
    canonical.Refs(instruction.inputs);
    canonical.U64(instruction.attributes.size());
    for (const auto& [name, value] : instruction.attributes) {
      canonical.Text(name);
      canonical.Value(value);
    }
  }
  canonical.Refs(program.outputs);
  return canonical.Take();
}

Fingerprint FingerprintOf(const Program& program) {
  // The fingerprint is the first half of a SHA-256 digest, so that nobody can construct two
  // programs with the same fingerprint.
  const std::string bytes = CanonicalBytes(program);
  std::array<uint8_t, SHA256_DIGEST_LENGTH> digest;
  SHA256(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size(), digest.data());
  return {LoadBig(digest.data()), LoadBig(digest.data() + 8)};
}

ProgramBuilder::Ref ProgramBuilder::Input() {
  if (!program_.instructions.empty() && status_.ok()) {
    status_ = absl::InvalidArgumentError("a program's inputs come before its first call");
  }
  return program_.num_inputs++;
}

ProgramBuilder::Ref ProgramBuilder::Call(std::string op, std::vector<Ref> inputs,
                                         Attributes attributes) {
  program_.instructions.push_back({std::move(op), std::move(inputs), std::move(attributes)});
  absl::Status status = CheckInputs(program_, program_.instructions.size() - 1);
  if (status_.ok()) status_ = std::move(status);
  return program_.num_inputs + static_cast<Ref>(program_.instructions.size()) - 1;
}

absl::StatusOr<Program> ProgramBuilder::Build(std::vector<Ref> outputs) {
  PSD_RETURN_IF_ERROR(status_);
  const Ref values = program_.num_inputs + static_cast<Ref>(program_.instructions.size());
  for (Ref output : outputs) {
    if (output >= 0 && output < values) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("result ", output, " is none of the program's ", values, " values"));
  }
  Program program = program_;
  program.outputs = std::move(outputs);
  return program;
}

}  // namespace psd::program
