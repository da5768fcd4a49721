#pragma once

// Programs <-> bytes (proto/psd/v1/program.proto): packed columns, no message per instruction.

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/program/program.h"

namespace psd::program {

std::string EncodeProgram(const Program& program);

// Believes nothing, but leaves the operators to CheckProgram.
// Errors: INVALID_ARGUMENT for bytes that EncodeProgram never makes, naming what disagrees;
// RESOURCE_EXHAUSTED by `limits`.
absl::StatusOr<Program> DecodeProgram(absl::string_view bytes, const ProgramLimits& limits);

}  // namespace psd::program
