#pragma once

// What a worker says of itself, for people and dashboards: the "worker.status" method.

#include <cstddef>

#include "absl/time/time.h"
#include "proto/psd/v1/status.pb.h"

namespace psd::worker {

class Runtime;

// Thread-safe. Every worker answers, trainers too.
class StatusService {
 public:
  // Named values and contexts that are listed unless the asker sets a limit, and at most.
  static constexpr size_t kDefaultLimit = 1000;
  static constexpr size_t kMaxLimit = 100'000;

  // Registers the method; `runtime` outlives the service and has not started.
  explicit StatusService(Runtime& runtime);
  StatusService(const StatusService&) = delete;
  StatusService& operator=(const StatusService&) = delete;

  // As of now; its parts are each consistent, not with one another. Takes time in proportion to
  // what is listed.
  v1::WorkerStatus Collect(const v1::StatusRequest& request) const;

 private:
  Runtime& runtime_;
  const absl::Time started_;  // on the runtime's clock
};

}  // namespace psd::worker
