#include "tests/core/device/cuda/cuda_suite.h"
#include "tests/core/device/cuda/fake_cuda.h"

namespace psd::testing {

std::string PrepareMachine() {
  ResetFakeCuda();
  return "";
}

}  // namespace psd::testing
