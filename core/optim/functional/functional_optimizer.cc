#include "core/optim/functional/functional_optimizer.h"

#include "core/base/device.h"

namespace psd::optim {

absl::Status FunctionalOptimizer::CheckDevice(const Device* device) const {
  return device == nullptr ? absl::OkStatus() : NotOnDevice(spec().type, device);
}

}  // namespace psd::optim
