#pragma once

// One worker, assembled from all layers. A daemon is a runtime plus services; a trainer is a
// runtime plus the public API in client/.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/autograd/operators.h"
#include "core/base/clock.h"
#include "core/base/completion_threads.h"
#include "core/base/device.h"
#include "core/base/executor.h"
#include "core/base/future.h"
#include "core/base/ids.h"
#include "core/base/log.h"
#include "core/base/memory_budget.h"
#include "core/base/parallel_for.h"
#include "core/base/result_memory.h"
#include "core/base/thread_pool.h"
#include "core/base/timer.h"
#include "core/base/work_threads.h"
#include "core/carrier/carrier.h"
#include "core/carrier/passed_descriptors.h"
#include "core/change/changes.h"
#include "core/change/journal.h"
#include "core/checkpoint/checkpoint_root.h"
#include "core/dist_autograd/dist_autograd.h"
#include "core/dist_autograd/exchange.h"
#include "core/optim/options/optimizer_registry.h"
#include "core/program/checked_program.h"
#include "core/program/program.h"
#include "core/program/program_cache.h"
#include "core/rpc/registrar/peer_directory.h"
#include "core/rpc/rpc_agent.h"
#include "core/rref/creation_gate.h"
#include "core/rref/rref_context.h"
#include "core/services/calls/functions.h"
#include "core/store/store.h"

namespace psd::device_loans {
class DeviceLoans;
}  // namespace psd::device_loans

namespace psd::device_pieces {
class DevicePulls;
}  // namespace psd::device_pieces

namespace psd::services {
class CallService;
class CheckpointService;
class CollectiveService;
class GradientService;
class InfoService;
class OptimizerService;
class RowsService;
class SaveService;
class StatusService;
class ValueService;
}  // namespace psd::services

namespace psd::worker {

class RuntimeFunctionHost;

struct RuntimeOptions {
  // The worker's name, unique in the job: 1 to 127 characters of A-Z a-z 0-9 _ : -
  std::string name;
  // The address to listen on, "host:port" (port 0 is any free one). If it is empty, the worker does
  // not listen, and has only the connections that it opens itself.
  std::string listen;
  // The address that others dial: "host:port", or "host" with the port that it listens on. Required
  // if `listen` is all interfaces (0.0.0.0). If it is empty, others dial the address listened on.
  std::string advertise;
  // The number of threads that run functions, programs and creations. The same number of other
  // threads run large steps and pulls.
  int threads = 4;
  // The most tasks that may wait for these threads. One session may fill at most half of them.
  size_t max_queued_functions = 10'000;
  // The budget for all memory that this worker holds, for itself and for peers. If null, there is
  // no limit.
  std::shared_ptr<MemoryBudget> memory;  // shared with the carrier
  // The devices besides the CPU on which this worker may host parameters and tables, each with a
  // budget of its own. No two have the same name. Shared with their creator.
  std::vector<std::shared_ptr<Device>> devices;
  rpc::SessionOptions session;
  program::ProgramLimits program_limits;
  size_t program_cache_entries = 1024;
  // The name of the registrar, which is told to workers that connect; empty if there is none.
  std::string registrar;
  // Whether messages to and from workers of the same host and user go through shared memory. Both
  // ends must allow it. If so, large results of operators in this process are allocated where such
  // workers can read them (ResultMemory), and so should `memory` be (NewWorkerBudget).
  bool shared_memory = true;
  // The absolute path of a folder in which workers of this host find each other although their
  // network namespaces differ, such as a volume of several containers. Empty: they do not. Has no
  // effect with a `carrier`.
  std::string shared_memory_folder;
  // Whether workers of the same host that use the same devices read this worker's memory there in
  // place, and this worker reads theirs. Both ends must allow it and share memory. A process that
  // reads such memory can also write to it, so only workers that trust each other may do this. Has
  // no effect with a `carrier`.
  bool share_devices = false;
  // The carrier that moves messages. If it is null, the worker makes one: gRPC, with shared memory
  // if `shared_memory` says so.
  std::shared_ptr<carrier::Carrier> carrier;
  // Makes the carrier if `carrier` is null and this is set. The argument is for
  // carrier::NewHostCarrier; null if this worker passes no descriptors.
  std::function<absl::StatusOr<std::shared_ptr<carrier::Carrier>>(
      std::shared_ptr<carrier::DescriptorUser>)>
      new_carrier;
  // The folder below which this worker may write its own files of a save; null if it never does.
  // Shared by the workers of this process that use it.
  std::shared_ptr<checkpoint::CheckpointRoot> checkpoint_root;
  // Sees every change of what this worker hosts under names. Null if there is no journal. Shared
  // with its reader.
  std::shared_ptr<change::Journal> journal;
  const Clock* clock = &Clock::Steady();
  std::shared_ptr<Logger> logger;  // null if nothing is logged
  // The operators that programs may call. If null, the built-in ones.
  std::shared_ptr<const OperatorRegistry> operators;
  optim::OptimizerRegistry optimizers = optim::OptimizerRegistry::Builtin();
  // The registered functions, by name.
  services::FunctionRegistry functions;
};

// Owns all layers of a worker. The destructor shuts down without waiting for work under way.
// Thread-safe.
class Runtime {
 public:
  // Assembles a worker, which does not serve yet.
  // Errors: INVALID_ARGUMENT naming the option; RESOURCE_EXHAUSTED if the system refuses a thread.
  static absl::StatusOr<std::unique_ptr<Runtime>> Create(RuntimeOptions options);
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  // Adds a method, for a daemon's own services. Must be called before Start.
  void RegisterMethod(rpc::Method method) { agent_->RegisterMethod(std::move(method)); }

  // Begins to serve. Returns the address at which the worker can be dialled ("" if it does not
  // listen).
  // Errors: UNAVAILABLE naming the address (port in use); RESOURCE_EXHAUSTED if the system refuses
  // a thread.
  absl::StatusOr<std::string> Start();

  // Finds other workers through the registrar. A daemon gets the registrar from its options, a
  // trainer gets it from its owners.
  rpc::PeerDirectory& peers() { return *peers_; }

  // Drains, releases all references that this worker holds once no function runs here any more, and
  // shuts the agent down, within `drain` (see RpcAgent). Then stops all threads. May be repeated.
  void Shutdown(absl::Duration drain);

  const std::string& name() const { return options_.name; }
  Incarnation incarnation() const { return ids_.incarnation(); }
  const std::string& address() const { return address_; }
  const RuntimeOptions& options() const { return options_; }

  rpc::RpcAgent& agent() { return *agent_; }
  store::Store& store() { return *store_; }
  change::Changes& changes() { return *changes_; }
  rref::RRefContext& rrefs() { return *rrefs_; }
  dist_autograd::DistAutograd& autograd() { return *autograd_; }
  const OperatorRegistry& operators() const { return *options_.operators; }
  const optim::OptimizerRegistry& optimizers() const { return options_.optimizers; }
  const services::FunctionRegistry& functions() const { return options_.functions; }
  program::ProgramCache& programs() { return *programs_; }
  MemoryBudget& memory() { return *options_.memory; }
  Executor& executor() { return *executor_; }
  ThreadPool::Stats executor_stats() const { return executor_->stats(); }
  // The executor for callbacks that users attach to futures. They may take long and may wait.
  std::shared_ptr<Executor> continuations() const { return continuations_; }
  TimerQueue& timers() { return *timers_; }
  Logger& logger() { return *options_.logger; }
  IdSource& ids() { return ids_; }
  device_loans::DeviceLoans& loans() { return *loans_; }

  services::ValueService& values() { return *values_; }
  services::CallService& calls() { return *calls_; }
  services::GradientService& gradients() { return *gradients_; }
  services::RowsService& rows() { return *rows_; }
  services::OptimizerService& optimizer_service() { return *optimizer_service_; }
  services::CheckpointService& checkpoints() { return *checkpoints_; }
  services::SaveService& saves() { return *saves_; }
  services::CollectiveService& collectives() { return *collectives_; }
  services::InfoService& info() { return *info_; }
  services::StatusService& status() { return *status_; }

 private:
  explicit Runtime(RuntimeOptions options);
  absl::Status Assemble();
  Helpers LargeWorkHelpers() const;
  // Gives memory that was kept for reuse back to the system when nothing uses it, again and again.
  void ReleaseUnusedLater();

  RuntimeOptions options_;
  std::shared_ptr<Allocator> result_memory_;  // shared with results_; null if memory is not shared
  std::optional<ResultMemoryScope> results_;  // if memory is shared
  IdSource ids_;
  std::string address_;
  // Shared with the carrier and with blocks that were borrowed.
  std::shared_ptr<device_loans::DeviceLoans> loans_;
  std::unique_ptr<CompletionThreads> completions_;
  std::shared_ptr<WorkThreads> executor_;      // shared with the agent
  std::shared_ptr<ThreadPool> continuations_;  // shared with futures that users hold
  std::shared_ptr<TimerQueue> timers_;         // shared with the agent
  std::unique_ptr<rpc::RpcAgent> agent_;
  std::unique_ptr<device_pieces::DevicePulls> pulls_;
  std::unique_ptr<rpc::PeerDirectory> peers_;
  // Declared before the store, which hosts optimizers that use it.
  std::unique_ptr<change::Changes> changes_;
  std::unique_ptr<store::Store> store_;
  std::unique_ptr<rref::RRefContext> rrefs_;
  std::unique_ptr<dist_autograd::DistAutograd> autograd_;
  std::unique_ptr<rref::CreationGate> creations_;
  std::unique_ptr<dist_autograd::Exchange> exchange_;
  std::unique_ptr<program::ProgramCache> programs_;
  std::unique_ptr<services::ValueService> values_;
  std::shared_ptr<RuntimeFunctionHost> function_host_;  // shared with the calls of functions
  std::unique_ptr<services::CallService> calls_;
  std::unique_ptr<services::GradientService> gradients_;
  std::unique_ptr<services::OptimizerService> optimizer_service_;
  std::unique_ptr<services::RowsService> rows_;
  std::unique_ptr<services::CheckpointService> checkpoints_;
  std::unique_ptr<services::SaveService> saves_;
  std::unique_ptr<services::CollectiveService> collectives_;
  std::unique_ptr<services::InfoService> info_;
  std::unique_ptr<services::StatusService> status_;
};

}  // namespace psd::worker
