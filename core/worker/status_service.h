#pragma once

// The "worker.status" method: a worker's report on itself, for people and dashboards.

#include <cstddef>

#include "absl/time/time.h"
#include "proto/psd/v1/status.pb.h"

namespace psd::worker {

class Runtime;

// Answers on every worker, trainers included. Thread-safe.
class StatusService {
 public:
  // The number of named values and of contexts that are listed unless the request sets a limit, and
  // the highest limit.
  static constexpr size_t kDefaultLimit = 1000;
  static constexpr size_t kMaxLimit = 100'000;

  // Registers the method. `runtime` must outlive the service and must not have started.
  explicit StatusService(Runtime& runtime);
  StatusService(const StatusService&) = delete;
  StatusService& operator=(const StatusService&) = delete;

  // Returns the present status. Each part is consistent in itself, but not with the others. Takes
  // time in proportion to the number of entries listed.
  v1::WorkerStatus Collect(const v1::StatusRequest& request) const;

 private:
  Runtime& runtime_;
  const absl::Time started_;  // on the runtime's clock
};

}  // namespace psd::worker
