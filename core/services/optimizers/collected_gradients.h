#pragma once

// The gradients that a context has collected for the parameters of an optimizer on the same worker.

#include <cstdint>
#include <memory>
#include <vector>

#include "core/dist_autograd/leaf_gradients.h"
#include "core/optim/parameters/parameter_table.h"
#include "core/optim/parameters/stepped_parameter.h"

namespace psd::services {

struct CollectedGradients {
  std::shared_ptr<const dist_autograd::LeafGradients> leaves;  // shared with the context
  std::vector<optim::ParameterGradient> gradients;             // borrowed from `leaves`
  int64_t elements = 0;    // the most elements that are read or written to plan a step with them
  bool on_device = false;  // some of the gradients are on devices
};

// Picks the gradients for the parameters of `table` out of all that a context has collected.
CollectedGradients PickGradients(std::shared_ptr<const dist_autograd::LeafGradients> leaves,
                                 const optim::ParameterTable& table);

}  // namespace psd::services
