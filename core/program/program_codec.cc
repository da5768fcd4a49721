#include "core/program/program_codec.h"

#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "proto/psd/v1/program.pb.h"

namespace psd::program {
namespace {

// Names are short, so a name that is used often costs little more than its number.
constexpr uint32_t kMaxNameBytes = 64;

enum AttributeKind : char { kInt = 1, kDouble = 2, kIntList = 3 };

class Encoder {
 public:
  std::string Encode(const Program& program) {
    out_.set_num_inputs(static_cast<uint32_t>(program.num_inputs));
    for (const Instruction& instruction : program.instructions) Add(instruction);
    out_.mutable_outputs()->Add(program.outputs.begin(), program.outputs.end());
    return out_.SerializeAsString();
  }

 private:
  uint32_t NameNumber(const std::string& name) {
    auto [it, added] = names_.try_emplace(name, static_cast<uint32_t>(names_.size()));
    if (added) {
      out_.mutable_names()->append(name);
      out_.add_name_sizes(static_cast<uint32_t>(name.size()));
    }
    return it->second;
  }
  void Add(const Instruction& instruction) {
    out_.add_ops(NameNumber(instruction.op));
    out_.add_input_counts(static_cast<uint32_t>(instruction.inputs.size()));
    out_.mutable_inputs()->Add(instruction.inputs.begin(), instruction.inputs.end());
    out_.add_attribute_counts(static_cast<uint32_t>(instruction.attributes.size()));
    for (const auto& [name, value] : instruction.attributes) {
      out_.add_attribute_names(NameNumber(name));
      Add(value);
    }
  }
  void Add(const AttributeValue& value) {
    if (const auto* number = std::get_if<int64_t>(&value)) {
      out_.mutable_attribute_kinds()->push_back(kInt);
      out_.add_ints(*number);
    } else if (const auto* real = std::get_if<double>(&value)) {
      out_.mutable_attribute_kinds()->push_back(kDouble);
      out_.add_doubles(*real);
    } else if (const auto* list = std::get_if<std::vector<int64_t>>(&value)) {
      out_.mutable_attribute_kinds()->push_back(kIntList);
      out_.add_list_sizes(static_cast<uint32_t>(list->size()));
      out_.mutable_ints()->Add(list->begin(), list->end());
    }
  }

  v1::Program out_;
  absl::flat_hash_map<std::string, uint32_t> names_;
};

absl::Status Disagree(const char* column) {
  return absl::InvalidArgumentError(
      absl::StrCat("the program's bytes are damaged: wrong number of ", column));
}

// Reads columns from front to back, never beyond their ends.
class Decoder {
 public:
  Decoder(const v1::Program& in, const ProgramLimits& limits) : in_(in), limits_(limits) {}

  absl::StatusOr<Program> Decode() {
    PSD_RETURN_IF_ERROR(CheckSizes());
    PSD_RETURN_IF_ERROR(ReadNames());
    Program program;
    program.num_inputs = static_cast<int32_t>(in_.num_inputs());
    program.instructions.reserve(in_.ops_size());
    for (int i = 0; i < in_.ops_size(); ++i) {
      absl::StatusOr<Instruction> instruction = Next(i);
      if (!instruction.ok()) {
        return Annotate(instruction.status(), absl::StrCat("instruction ", i));
      }
      program.instructions.push_back(*std::move(instruction));
    }
    PSD_RETURN_IF_ERROR(CheckAllRead());
    program.outputs.assign(in_.outputs().begin(), in_.outputs().end());
    return program;
  }

 private:
  absl::Status Limit(const char* what, size_t size, size_t limit) {
    if (size <= limit) return absl::OkStatus();
    return absl::ResourceExhaustedError(
        absl::StrCat("the program has ", size, " ", what, ", the limit is ", limit));
  }

  absl::Status CheckSizes() {
    PSD_RETURN_IF_ERROR(Limit("arguments", in_.num_inputs(), limits_.max_inputs));
    PSD_RETURN_IF_ERROR(Limit("arguments", in_.num_inputs(), INT32_MAX));
    PSD_RETURN_IF_ERROR(Limit("instructions", in_.ops_size(), limits_.max_instructions));
    PSD_RETURN_IF_ERROR(Limit("results", in_.outputs_size(), limits_.max_outputs));
    PSD_RETURN_IF_ERROR(Limit(
        "attribute items", size_t{0} + in_.ints_size() + in_.doubles_size() + in_.list_sizes_size(),
        limits_.max_attribute_items));
    if (in_.input_counts_size() != in_.ops_size()) return Disagree("input counts");
    if (in_.attribute_counts_size() != in_.ops_size()) return Disagree("attribute counts");
    if (in_.attribute_kinds().size() != static_cast<size_t>(in_.attribute_names_size())) {
      return Disagree("attribute kinds");
    }
    return absl::OkStatus();
  }

  absl::Status ReadNames() {
    size_t offset = 0;
    PSD_RETURN_IF_ERROR(Limit("names", in_.name_sizes_size(),
                              size_t{0} + in_.ops_size() + in_.attribute_names_size()));
    for (uint32_t size : in_.name_sizes()) {
      PSD_RETURN_IF_ERROR(Limit("bytes in a name", size, kMaxNameBytes));
      if (size > in_.names().size() - offset) return Disagree("bytes of names");
      names_.push_back(absl::string_view(in_.names()).substr(offset, size));
      offset += size;
    }
    return offset == in_.names().size() ? absl::OkStatus() : Disagree("bytes of names");
  }

  absl::StatusOr<std::string> Name(uint32_t number) {
    if (number < names_.size()) return std::string(names_[number]);
    return absl::InvalidArgumentError(
        absl::StrCat("name number ", number, " of ", names_.size(), " names"));
  }

  absl::StatusOr<Instruction> Next(int i) {
    Instruction instruction;
    PSD_ASSIGN_OR_RETURN(instruction.op, Name(in_.ops(i)));
    const uint32_t inputs = in_.input_counts(i);
    if (inputs > static_cast<uint32_t>(in_.inputs_size() - input_)) return Disagree("inputs");
    auto first = in_.inputs().begin() + input_;
    instruction.inputs.assign(first, first + inputs);
    input_ += static_cast<int>(inputs);
    const uint32_t attributes = in_.attribute_counts(i);
    PSD_RETURN_IF_ERROR(Limit("attributes", attributes, limits_.max_attributes));
    for (uint32_t k = 0; k < attributes; ++k) {
      if (attribute_ >= in_.attribute_names_size()) return Disagree("attributes");
      PSD_ASSIGN_OR_RETURN(std::string name, Name(in_.attribute_names(attribute_)));
      PSD_ASSIGN_OR_RETURN(AttributeValue value, NextValue(in_.attribute_kinds()[attribute_++]));
      auto [it, added] = instruction.attributes.emplace(std::move(name), std::move(value));
      if (!added) {
        return absl::InvalidArgumentError(absl::StrCat("attribute ", it->first, " is given twice"));
      }
    }
    return instruction;
  }

  absl::StatusOr<AttributeValue> NextValue(char kind) {
    switch (kind) {
      case kInt:
        if (int_ >= in_.ints_size()) return Disagree("integers");
        return AttributeValue(static_cast<int64_t>(in_.ints(int_++)));
      case kDouble:
        if (double_ >= in_.doubles_size()) return Disagree("doubles");
        return AttributeValue(in_.doubles(double_++));
      case kIntList: {
        if (list_ >= in_.list_sizes_size()) return Disagree("lists");
        const uint32_t size = in_.list_sizes(list_++);
        if (size > static_cast<uint32_t>(in_.ints_size() - int_)) return Disagree("integers");
        auto first = in_.ints().begin() + int_;
        int_ += static_cast<int>(size);
        return AttributeValue(std::vector<int64_t>(first, first + size));
      }
      default:
        return absl::InvalidArgumentError(
            absl::StrCat("unknown kind of attribute ", static_cast<int>(kind)));
    }
  }

  absl::Status CheckAllRead() {
    if (input_ != in_.inputs_size()) return Disagree("inputs");
    if (attribute_ != in_.attribute_names_size()) return Disagree("attributes");
    if (int_ != in_.ints_size()) return Disagree("integers");
    if (double_ != in_.doubles_size()) return Disagree("doubles");
    if (list_ != in_.list_sizes_size()) return Disagree("lists");
    return absl::OkStatus();
  }

  const v1::Program& in_;
  const ProgramLimits& limits_;
  std::vector<absl::string_view> names_;
  int input_ = 0;
  int attribute_ = 0;
  int int_ = 0;
  int double_ = 0;
  int list_ = 0;
};

}  // namespace

std::string EncodeProgram(const Program& program) {
  return Encoder().Encode(program);
}

absl::StatusOr<Program> DecodeProgram(absl::string_view bytes, const ProgramLimits& limits) {
  v1::Program in;
  if (!in.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return absl::InvalidArgumentError(absl::StrCat(bytes.size(), " bytes are no program"));
  }
  return Decoder(in, limits).Decode();
}

}  // namespace psd::program
