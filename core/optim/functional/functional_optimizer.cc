#include "core/optim/functional/functional_optimizer.h"

#include "core/base/device.h"

namespace psd::optim {

kernels::OptimType OptimTypeOf(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return kernels::OptimType::kF64;
    case DType::kF16:
      return kernels::OptimType::kF16;
    case DType::kBF16:
      return kernels::OptimType::kBF16;
    default:
      return kernels::OptimType::kF32;
  }
}

absl::Status FunctionalOptimizer::CheckDevice(const Device* device) const {
  return device == nullptr ? absl::OkStatus() : NotOnDevice(spec().type, device);
}

}  // namespace psd::optim
