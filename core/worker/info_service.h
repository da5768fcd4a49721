#pragma once

// Who answers at an address: the first question to a new peer.

#include <string>

#include "core/base/future.h"
#include "core/rpc/rpc_agent.h"

namespace psd::worker {

class Runtime;

struct WorkerInfo {
  std::string name;
  std::string registrar;  // the worker that knows the world; empty: nobody
};

// Both ends of the "worker.info" method. Thread-safe.
class InfoService {
 public:
  // Registers the method; `runtime` outlives the service and has not started.
  explicit InfoService(Runtime& runtime);

  Future<WorkerInfo> Ask(const std::string& worker, const rpc::CallOptions& options);

 private:
  Runtime& runtime_;
};

}  // namespace psd::worker
