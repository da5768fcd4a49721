#pragma once

// Whether the kernels of GPUs and of emulated devices have the bits of the CPU's.

#include <string>

#include "kernels/instruction_set.h"

namespace psd::testing {

// Whether the CPU's kernels fuse multiplications and additions on this machine. If they do, the
// optimizers of devices and of the CPU give the same bits, except those of NaNs (decision 0028).
inline bool CpuFuses() {
  const std::string set = kernels::InstructionSet();
  return set.rfind("AVX2", 0) == 0 || set.rfind("AVX3", 0) == 0;
}

}  // namespace psd::testing
