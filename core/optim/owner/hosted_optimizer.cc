#include "core/optim/owner/hosted_optimizer.h"

namespace psd::optim {

std::shared_ptr<OwnerOptimizer> OptimizerOf(const store::Entry& entry) {
  const auto* object = entry.value.As<std::shared_ptr<store::Object>>();
  return object == nullptr ? nullptr : std::dynamic_pointer_cast<OwnerOptimizer>(*object);
}

}  // namespace psd::optim
