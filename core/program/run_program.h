#pragma once

// The interpreter of programs.

#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/autograd/variable.h"
#include "core/program/program.h"

namespace psd::program {

// Runs it on this thread. Its history is one node, whatever happens inside (see NoGradGuard and
// core/autograd/tape.h). Results are dropped after their last use; what history still holds counts
// as alive.
// Errors: INVALID_ARGUMENT for a wrong number of arguments or what an operator says, with the
// instruction's number; RESOURCE_EXHAUSTED by `limits`; CANCELLED when `cancelled` says so before
// the first instruction, or between two when enough has been done to ask again.
absl::StatusOr<std::vector<Variable>> RunProgram(const CheckedProgram& program,
                                                 const ProgramLimits& limits,
                                                 absl::Span<const Variable> inputs,
                                                 absl::FunctionRef<bool()> cancelled);

}  // namespace psd::program
