#pragma once

// How much a program will do, before it runs.

#include <cstdint>

#include "absl/types/span.h"
#include "core/autograd/variable.h"
#include "core/program/program.h"

namespace psd::program {

// Whether a run with these inputs does at most `limit`: the sum of OperatorWork over all
// instructions, by the shapes that they infer. False too where the shapes do not fit, which the run
// will say.
bool WorkIsAtMost(int64_t limit, const CheckedProgram& program, absl::Span<const Variable> inputs);

}  // namespace psd::program
