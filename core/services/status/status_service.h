#pragma once

// The "worker.status" method: a worker's report on itself, for people and dashboards.

#include <cstddef>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/clock.h"
#include "core/base/memory_budget.h"
#include "core/base/work_threads.h"
#include "core/device_loans/device_loans.h"
#include "core/dist_autograd/dist_autograd.h"
#include "core/program/program_cache.h"
#include "core/rpc/declared_method.h"
#include "core/rpc/registrar/peer_directory.h"
#include "core/rpc/rpc_agent.h"
#include "core/rref/rref_context.h"
#include "core/store/store.h"
#include "proto/psd/v1/status.pb.h"

namespace psd::services {

// Answers on every worker, trainers included. Thread-safe.
class StatusService {
 public:
  // The number of named values and of contexts that are listed if the request sets no limit, and
  // the highest limit that a request can set.
  static constexpr size_t kDefaultLimit = 1000;
  static constexpr size_t kMaxLimit = 100'000;

  // The parts of the worker that the service uses. They must outlive the service.
  struct Uses {
    rpc::RpcAgent& agent;
    store::Store& store;
    rref::RRefContext& rrefs;
    dist_autograd::DistAutograd& autograd;
    program::ProgramCache& programs;
    MemoryBudget& memory;
    const WorkThreads& executor;
    const rpc::PeerDirectory& peers;
    const Clock& clock;
    const std::string& address;  // at which this worker can be dialled
    const device_loans::DeviceLoans& loans;
  };

  // Registers the methods. The agent must not have started.
  explicit StatusService(Uses uses);
  StatusService(const StatusService&) = delete;
  StatusService& operator=(const StatusService&) = delete;

  // Returns the present status. Each part is consistent in itself, but not with the others. Takes
  // time in proportion to the number of entries listed.
  v1::WorkerStatus Collect(const v1::StatusRequest& request) const;
  // As Collect, for a client. Errors: PERMISSION_DENIED.
  absl::StatusOr<v1::WorkerStatus> CollectFor(const rpc::Asker& asker,
                                              const v1::StatusRequest& request) const;

 private:
  absl::StatusOr<v1::WorkerStatus> ServeStatus(const rpc::CallPtr& call, v1::StatusRequest request);

  const Uses uses_;
  const absl::Time started_;  // on the runtime's clock
};

}  // namespace psd::services
