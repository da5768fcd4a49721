#pragma once

// Asks a new peer for its name and its registrar.

#include <string>

#include "absl/status/statusor.h"
#include "core/base/future.h"
#include "core/rpc/declared_method.h"
#include "core/rpc/rpc_agent.h"

namespace psd::v1 {
class InfoReply;
}  // namespace psd::v1

namespace psd::services {

struct WorkerInfo {
  std::string name;
  std::string registrar;  // the name of its registrar; empty if it has none
};

// Client and server side of the "worker.info" method. Thread-safe.
class InfoService {
 public:
  // The parts of the worker that the service uses. They must outlive the service.
  struct Uses {
    rpc::RpcAgent& agent;
    const std::string& registrar;
  };

  // Registers the methods. The agent must not have started.
  explicit InfoService(Uses uses);

  Future<WorkerInfo> Ask(const std::string& worker, const rpc::CallOptions& options);

 private:
  absl::StatusOr<v1::InfoReply> ServeInfo(const rpc::CallPtr& call, Unit request);

  const Uses uses_;
};

}  // namespace psd::services
