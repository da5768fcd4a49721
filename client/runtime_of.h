#pragma once

// The way from the public interface to the worker's layers. For client/ and tests.

#include "client/worker.h"
#include "core/runtime/runtime.h"

namespace psd {

// Returns the runtime of `worker`, which lives as long as the worker.
worker::Runtime& RuntimeOf(Worker& worker);

}  // namespace psd
