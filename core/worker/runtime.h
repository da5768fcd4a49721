#pragma once

// One worker, assembled: the only place that sees every layer. A daemon is a runtime plus
// services; a trainer is a runtime plus the public face in client/.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/autograd/operators.h"
#include "core/base/clock.h"
#include "core/base/executor.h"
#include "core/base/future.h"
#include "core/base/ids.h"
#include "core/base/log.h"
#include "core/base/memory_budget.h"
#include "core/base/timer.h"
#include "core/carrier/carrier.h"
#include "core/checkpoint/checkpoint_root.h"
#include "core/dist_autograd/dist_autograd.h"
#include "core/optim/options/optimizer_registry.h"
#include "core/program/program.h"
#include "core/program/program_cache.h"
#include "core/rpc/rpc_agent.h"
#include "core/rref/rref_context.h"
#include "core/store/store.h"
#include "core/worker/functions.h"
#include "core/worker/peer_directory.h"

namespace psd::worker {

class CallService;
class CheckpointService;
class GradientService;
class InfoService;
class OptimizerService;
class RowsService;
class SaveService;
class StatusService;
class ValueService;

struct RuntimeOptions {
  // Unique in the job: 1 to 127 characters of A-Z a-z 0-9 _ : -
  std::string name;
  // "host:port" to serve at (port 0: any free one); empty: only connections opened from here.
  std::string listen;
  // Where others dial it: "host:port", or "host" with the port listened on. Required if `listen` is
  // all interfaces (0.0.0.0). Empty: the address listened on.
  std::string advertise;
  // Threads that run functions, programs and creations. Large steps and pulls run on them too, and
  // on one thread more that users never get.
  int threads = 4;
  // What may wait for these threads. One session fills at most half of it.
  size_t max_queued_functions = 10'000;
  // For all that this worker holds, for itself and for peers; null: a budget without limit.
  std::shared_ptr<MemoryBudget> memory;  // shared with the carrier
  rpc::SessionOptions session;
  program::ProgramLimits program_limits;
  size_t program_cache_entries = 1024;
  // The worker that knows the world, told to whoever connects; empty: nobody does.
  std::string registrar;
  // What moves messages; null: gRPC.
  std::shared_ptr<carrier::Carrier> carrier;
  // Below which this worker may write its own files of a save; null: it never does. Shared by the
  // workers that may.
  std::shared_ptr<checkpoint::CheckpointRoot> checkpoint_root;
  const Clock* clock = &Clock::Steady();
  std::shared_ptr<Logger> logger;  // null: nothing is logged
  // What programs may call; null: the built-in operators.
  std::shared_ptr<const OperatorRegistry> operators;
  optim::OptimizerRegistry optimizers = optim::OptimizerRegistry::Builtin();
  // Registered functions, by name.
  FunctionRegistry functions;
};

// Thread-safe. Destroying it shuts down at once.
class Runtime {
 public:
  // Assembles, does not serve yet.
  // Errors: INVALID_ARGUMENT naming the option; RESOURCE_EXHAUSTED when the system refuses a
  // thread.
  static absl::StatusOr<std::unique_ptr<Runtime>> Create(RuntimeOptions options);
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  // Further methods, before Start: a daemon's own services.
  void RegisterMethod(rpc::Method method) { agent_->RegisterMethod(std::move(method)); }

  // Serves. Returns the address at which it can be dialled ("" when not listening).
  // Errors: UNAVAILABLE naming the address (port in use); RESOURCE_EXHAUSTED when the system
  // refuses a thread.
  absl::StatusOr<std::string> Start();

  // Finds other workers through the registrar. A daemon's registrar is in its options, a trainer is
  // told by its owners.
  PeerDirectory& peers() { return *peers_; }

  // See RpcAgent::Shutdown; then releases everything. May be repeated.
  void Shutdown(absl::Duration drain);

  const std::string& name() const { return options_.name; }
  Incarnation incarnation() const { return ids_.incarnation(); }
  const std::string& address() const { return address_; }
  const RuntimeOptions& options() const { return options_; }

  rpc::RpcAgent& agent() { return *agent_; }
  store::Store& store() { return *store_; }
  rref::RRefContext& rrefs() { return *rrefs_; }
  dist_autograd::DistAutograd& autograd() { return *autograd_; }
  const OperatorRegistry& operators() const { return *options_.operators; }
  const optim::OptimizerRegistry& optimizers() const { return options_.optimizers; }
  const FunctionRegistry& functions() const { return options_.functions; }
  program::ProgramCache& programs() { return *programs_; }
  MemoryBudget& memory() { return *options_.memory; }
  Executor& executor() { return *executor_; }
  ThreadPool::Stats executor_stats() const { return executor_->stats(); }
  // Runs what users hang on futures, which may take its time and wait.
  std::shared_ptr<Executor> continuations() const { return continuations_; }
  TimerQueue& timers() { return *timers_; }
  Logger& logger() { return *options_.logger; }
  IdSource& ids() { return ids_; }

  ValueService& values() { return *values_; }
  CallService& calls() { return *calls_; }
  GradientService& gradients() { return *gradients_; }
  RowsService& rows() { return *rows_; }
  OptimizerService& optimizer_service() { return *optimizer_service_; }
  CheckpointService& checkpoints() { return *checkpoints_; }
  SaveService& saves() { return *saves_; }
  InfoService& info() { return *info_; }
  StatusService& status() { return *status_; }

 private:
  explicit Runtime(RuntimeOptions options);
  absl::Status Assemble();

  RuntimeOptions options_;
  IdSource ids_;
  std::string address_;
  std::shared_ptr<ThreadPool> executor_;       // shared with the agent
  std::shared_ptr<ThreadPool> continuations_;  // shared with futures that users hold
  std::shared_ptr<TimerQueue> timers_;         // shared with the agent
  std::unique_ptr<rpc::RpcAgent> agent_;
  std::unique_ptr<PeerDirectory> peers_;
  std::unique_ptr<store::Store> store_;
  std::unique_ptr<rref::RRefContext> rrefs_;
  std::unique_ptr<dist_autograd::DistAutograd> autograd_;
  std::unique_ptr<program::ProgramCache> programs_;
  std::unique_ptr<ValueService> values_;
  std::unique_ptr<CallService> calls_;
  std::unique_ptr<GradientService> gradients_;
  std::unique_ptr<OptimizerService> optimizer_service_;
  std::unique_ptr<RowsService> rows_;
  std::unique_ptr<CheckpointService> checkpoints_;
  std::unique_ptr<SaveService> saves_;
  std::unique_ptr<InfoService> info_;
  std::unique_ptr<StatusService> status_;
};

}  // namespace psd::worker
