#pragma once

namespace psd::kernels {

// Returns the name of the instruction set that kernels use on this machine, for example "AVX2". It
// lives as long as the process.
const char* InstructionSet();

}  // namespace psd::kernels
