#include "core/device/cuda/cuda_support.h"
#include "tests/core/device/cuda/cuda_suite.h"

namespace psd::testing {

std::string PrepareMachine() {
  return std::string(cuda::CheckSupport(cuda::FindFacts(0)).message());
}

}  // namespace psd::testing
