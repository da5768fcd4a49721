#pragma once

// Gives client/ and tests access to the internals of a worker, which client/psd.h does not offer.

#include <memory>

#include "absl/status/statusor.h"
#include "client/worker.h"
#include "core/runtime/runtime.h"

namespace psd {

// Returns the runtime of `worker`, which lives as long as the worker.
worker::Runtime& RuntimeOf(Worker& worker);

// As Worker::Start, but all messages go over `carrier`. WorkerOptions::shared_memory has no effect.
absl::StatusOr<std::unique_ptr<Worker>> StartOver(std::shared_ptr<carrier::Carrier> carrier,
                                                  WorkerOptions options);

}  // namespace psd
