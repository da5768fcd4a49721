#pragma once

// Gives client/ and tests what client/psd.h does not offer: the internals of a worker, and workers
// over carriers of the caller's choice.

#include <memory>

#include "absl/status/statusor.h"
#include "client/worker.h"
#include "core/runtime/runtime.h"

namespace psd {

// Returns the runtime of `worker`, which lives as long as the worker.
worker::Runtime& RuntimeOf(Worker& worker);

// As Worker::Start, but all messages go over `carrier`; null stands for the carriers that the
// options ask for. WorkerOptions::shared_memory only decides then where memory for messages is
// allocated, and share_devices has no effect.
absl::StatusOr<std::unique_ptr<Worker>> StartWithCarrier(std::shared_ptr<carrier::Carrier> carrier,
                                                         WorkerOptions options);

}  // namespace psd
