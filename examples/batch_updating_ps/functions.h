#pragma once

#include <memory>

#include "client/psd.h"
#include "examples/batch_updating_ps/batch_updater.h"

namespace psd::examples {

// Returns the functions that the parameter server offers:
//   model.fetch() -> the model's tensors
//   model.update_and_fetch(gradients ...) -> the model's tensors, after the batch was applied
// `updater` is shared with the functions.
FunctionRegistry MakeFunctions(std::shared_ptr<BatchUpdater> updater);

}  // namespace psd::examples
