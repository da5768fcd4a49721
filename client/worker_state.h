#pragma once

// The implementation of Worker. Internal to client/.

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "client/open_ids.h"
#include "client/psd.h"
#include "core/dist_autograd/context.h"
#include "core/dist_autograd/exchange.h"
#include "core/rpc/registrar/registrar_client.h"
#include "core/runtime/runtime.h"

namespace psd {

struct Worker::State {
  WorkerOptions options;
  std::unique_ptr<worker::Runtime> runtime;
  std::unique_ptr<rpc::RegistrarClient> registrar_client;
  std::atomic<bool> shut_down{false};
  // Shared with the steps. A step that failed stays open as long as the user holds its outcome.
  const std::shared_ptr<OpenIds> open_steps = std::make_shared<OpenIds>();
  // Shared with the running steps. Each of them has a turn.
  const std::shared_ptr<OpenIds> open_turns = std::make_shared<OpenIds>();
  std::atomic<int64_t> default_timeout_ns{0};

  // Connects to all owners, then joins the job if the options say so.
  absl::Status Attach();
  // Asks every owner for the name of the registrar, and joins there.
  absl::Status JoinWorld(absl::Time until);
  rpc::CallOptions ToCallOptions(const CallOptions& call) const;
  absl::Status CheckRunning() const;
  // Returns the device of this worker called `name`, which is not the host.
  // Errors: INVALID_ARGUMENT naming those that it has.
  absl::StatusOr<Device*> FindDevice(const std::string& name) const;
  // The rpc options of a call, the context that records it, or null, and the device that gets its
  // results, where null is the host.
  struct CallPlan {
    rpc::CallOptions options;
    dist_autograd::ContextPtr context;
    Device* device = nullptr;
  };
  // Errors: FAILED_PRECONDITION after shutdown and for a context that was moved from;
  // INVALID_ARGUMENT for a negative timeout and for a device that this worker does not have.
  absl::StatusOr<CallPlan> Plan(const CallOptions& call) const;

  // Returns the name of the worker that a call goes to, after making it reachable.
  absl::StatusOr<std::string> Resolve(const Callee& callee);
  absl::StatusOr<std::vector<WorkerInfo>> AskInfos();
  // Tells the agent the worker's address, if there is a registrar to ask for it.
  // Errors: NOT_FOUND naming the nearest name; UNAVAILABLE for a worker that does not listen.
  absl::Status MakeReachable(const std::string& name);

  absl::StatusOr<std::map<std::string, Value>> AllGather(const std::string& name,
                                                         const Value& value,
                                                         const std::vector<std::string>& members,
                                                         absl::Duration timeout);
  // Waits until all trainers of the group wait here and none of them has a call under way.
  absl::Status WaitForGroup(absl::Duration timeout);
};

}  // namespace psd
