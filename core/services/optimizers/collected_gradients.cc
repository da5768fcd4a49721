#include "core/services/optimizers/collected_gradients.h"

#include <cstddef>
#include <optional>
#include <utility>

#include "core/optim/parameters/kept_tensor.h"
#include "core/store/parameter.h"
#include "core/tensor/sparse_tensor.h"

namespace psd::services {

CollectedGradients PickGradients(std::shared_ptr<const dist_autograd::LeafGradients> leaves,
                                 const optim::ParameterTable& table) {
  CollectedGradients collected;
  collected.leaves = std::move(leaves);
  collected.gradients.reserve(collected.leaves->size());
  size_t next = 0;
  collected.leaves->ForEach([&](const dist_autograd::LeafGradient& leaf) {
    const std::optional<size_t> index = table.Find(leaf.key, next);
    if (!index.has_value()) return;
    next = *index + 1;
    collected.elements += leaf.gradient.NumElements();
    collected.on_device |= leaf.gradient.defined() && !leaf.gradient.OnHost();
    optim::ParameterGradient& gradient = collected.gradients.emplace_back();
    gradient.parameter = leaf.key;
    gradient.gradient = optim::KeptTensor::Borrow(leaf.gradient);
    gradient.version = leaf.version;
    gradient.rounds_to = leaf.rounds_to;
    if (leaf.sparse.empty()) return;
    gradient.sparse = leaf.sparse;
    // Planning makes the gradient as large as the parameter if the step moves all its rows.
    if (const store::Parameter* dense = table.versions(*index); dense != nullptr)
      collected.elements += dense->shape().NumElements();
    for (const SparseTensor& part : leaf.sparse) collected.elements += part.values().NumElements();
  });
  return collected;
}

}  // namespace psd::services
