#pragma once

// Asks a new peer for its name and its registrar.

#include <string>

#include "core/base/future.h"
#include "core/rpc/rpc_agent.h"

namespace psd::worker {

class Runtime;

struct WorkerInfo {
  std::string name;
  std::string registrar;  // the name of its registrar; empty if it has none
};

// Client and server side of the "worker.info" method. Thread-safe.
class InfoService {
 public:
  // Registers the method. `runtime` must outlive the service and must not have started.
  explicit InfoService(Runtime& runtime);

  Future<WorkerInfo> Ask(const std::string& worker, const rpc::CallOptions& options);

 private:
  Runtime& runtime_;
};

}  // namespace psd::worker
