#pragma once

// Runs a test once for each instruction set that is compiled in and that this machine has.

#include <cstddef>
#include <cstdint>

#include "gtest/gtest.h"
#include "hwy/targets.h"

namespace psd::kernels {

template <typename Test>
void OnEveryTarget(const Test& test) {
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    test();
    hwy::SetSupportedTargetsForTest(0);
  }
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

// Lengths around every vector width, and offsets at which vectors are not aligned.
inline constexpr size_t kLengths[] = {0, 1, 2, 3, 5, 8, 15, 16, 17, 31, 33, 64, 100};
inline constexpr size_t kOffsets[] = {0, 1, 3};

}  // namespace psd::kernels
