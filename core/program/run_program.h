#pragma once

// The interpreter of programs.

#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/autograd/variable.h"
#include "core/program/checked_program.h"
#include "core/program/program.h"

namespace psd::program {

// Runs a program on the calling thread and returns its outputs. If history is recorded (see
// NoGradGuard), the whole run is one node of the graph (core/autograd/tape.h). Each result is
// dropped after its last use. A result with history counts as alive until the end of the run. What
// operators without inputs create is on the device that all floating inputs share, or of a program
// without inputs on that of the thread's CreationScope, if it is floating too; otherwise it is on
// the host. Errors: INVALID_ARGUMENT for a wrong number of
// arguments; the errors of the operators, with the number of the instruction; RESOURCE_EXHAUSTED
// for results beyond `limits`; CANCELLED if `cancelled` returns true. `cancelled` is called before
// the first instruction, and then between instructions whenever enough work has been done since.
absl::StatusOr<std::vector<Variable>> RunProgram(const CheckedProgram& program,
                                                 const ProgramLimits& limits,
                                                 absl::Span<const Variable> inputs,
                                                 absl::FunctionRef<bool()> cancelled);

}  // namespace psd::program
