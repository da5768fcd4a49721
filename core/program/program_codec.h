#pragma once

// Encodes programs as bytes and decodes them. The format (proto/psd/v1/program.proto) has packed
// columns instead of a message per instruction.

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/program/checked_program.h"
#include "core/program/program.h"

namespace psd::program {

std::string EncodeProgram(const Program& program);

// Decodes bytes from outside. It checks their structure and sizes; CheckedProgram::Create checks
// the operators.
// Errors: INVALID_ARGUMENT for bytes that EncodeProgram never produces, naming the column that is
// wrong; RESOURCE_EXHAUSTED for a program beyond `limits`.
absl::StatusOr<Program> DecodeProgram(absl::string_view bytes, const ProgramLimits& limits);

}  // namespace psd::program
