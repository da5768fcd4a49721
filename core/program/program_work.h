#pragma once

// Estimates the work of a program before it runs.

#include <cstdint>

#include "absl/types/span.h"
#include "core/autograd/variable.h"
#include "core/program/checked_program.h"
#include "core/program/program.h"

namespace psd::program {

// Whether a run with these inputs takes at most `limit` work, which is the sum of OperatorWork over
// all instructions. Also returns false if the inputs do not fit the program; the run will report
// that error.
bool WorkIsAtMost(int64_t limit, const CheckedProgram& program, absl::Span<const Variable> inputs);

}  // namespace psd::program
