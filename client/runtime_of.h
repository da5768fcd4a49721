#pragma once

// Gives client/ and tests access to the internals of a worker, which client/psd.h does not offer.

#include "client/worker.h"
#include "core/runtime/runtime.h"

namespace psd {

// Returns the runtime of `worker`, which lives as long as the worker.
worker::Runtime& RuntimeOf(Worker& worker);

}  // namespace psd
