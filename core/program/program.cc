#include "core/program/program.h"

#include <openssl/sha.h>

#include <array>
#include <cstring>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/base/status.h"
#include "core/program/checked_program.h"

namespace psd::program {
namespace {

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

std::string Fingerprint::ToString() const {
  return absl::StrFormat("%016x%016x", high, low);
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
