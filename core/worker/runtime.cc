#include "core/worker/runtime.h"

#include <algorithm>
#include <limits>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/clock.h"
#include "core/base/host_port.h"
#include "core/base/remedy.h"
#include "core/base/start_thread.h"
#include "core/base/status.h"
#include "core/base/worker_name.h"
#include "core/carrier/grpc/grpc_factory.h"
#include "core/worker/call_service.h"
#include "core/worker/checkpoint_service.h"
#include "core/worker/gradient_service.h"
#include "core/worker/info_service.h"
#include "core/worker/optimizer_service.h"
#include "core/worker/rows_service.h"
#include "core/worker/save_service.h"
#include "core/worker/status_service.h"
#include "core/worker/value_service.h"

namespace psd::worker {
namespace {

absl::StatusOr<std::shared_ptr<carrier::Carrier>> DefaultCarrier(const RuntimeOptions& options) {
  carrier::GrpcCarrierOptions grpc;
  grpc.memory = options.memory;
  grpc.start_threads = options.listen.empty();
  return carrier::NewGrpcCarrier(grpc);
}

absl::Status CheckAddresses(const RuntimeOptions& options) {
  if (!options.advertise.empty() && options.listen.empty()) {
    return WithRemedy(absl::InvalidArgumentError(absl::StrCat(
                          options.name, " advertises ", options.advertise, " and does not listen")),
                      "set `listen`");
  }
  if (!options.advertise.empty())
    return Annotate(AdvertisedAddress("localhost:1", options.advertise).status(), "advertise");
  if (!NeedsAdvertise(options.listen)) return absl::OkStatus();
  return WithRemedy(
      absl::InvalidArgumentError(absl::StrCat(options.name, " is to listen on ", options.listen,
                                              ", all interfaces, which nobody can dial")),
      "say with `advertise` by what name or address other hosts reach it");
}

// The threads that gRPC starts by itself once there are connections: for timers, for names, for
// callbacks and, per core, for events. It tells nobody when one is refused; the process would go on
// without it and hang when it is to stop.
int NetworkThreads() {
  return 5 + std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 2, 32);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Runtime>> Runtime::Create(RuntimeOptions options) {
  PSD_RETURN_IF_ERROR(CheckWorkerName(options.name));
  if (options.threads < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("threads = ", options.threads, ": a worker needs at least one"));
  }
  PSD_RETURN_IF_ERROR(CheckAddresses(options));
  if (options.logger == nullptr) options.logger = NewNullLogger();
  if (options.operators == nullptr) options.operators = OperatorRegistry::Builtin();
  if (options.memory == nullptr) options.memory = MemoryBudget::Create(0);
  if (options.carrier == nullptr) {
    PSD_ASSIGN_OR_RETURN(options.carrier, DefaultCarrier(options));
  }
  std::unique_ptr<Runtime> runtime(new Runtime(std::move(options)));
  PSD_RETURN_IF_ERROR(runtime->Assemble());
  return runtime;
}

Runtime::Runtime(RuntimeOptions options) : options_(std::move(options)), ids_(NewIncarnation()) {}

absl::Status Runtime::Assemble() {
  ThreadPoolOptions pool;
  pool.purpose = "functions and steps";
  pool.threads = options_.threads;
  pool.max_queue = options_.max_queued_functions;
  pool.reserved = 1;
  // Without a limit the results of operators need not be charged.
  if (options_.memory->limit_bytes() != 0) pool.memory = options_.memory->transit();
  executor_ = std::make_shared<ThreadPool>(pool);
  PSD_RETURN_IF_ERROR(executor_->started());
  pool.purpose = "callbacks of futures";
  pool.max_queue = std::numeric_limits<size_t>::max();  // one entry for each future of a user
  pool.reserved = 0;
  continuations_ = std::make_shared<ThreadPool>(pool);
  PSD_RETURN_IF_ERROR(continuations_->started());
  timers_ = std::make_shared<TimerQueue>(*options_.clock);
  PSD_RETURN_IF_ERROR(timers_->started());

  rpc::AgentOptions agent;
  agent.memory = pool.memory;
  agent.self = {options_.name, ids_.incarnation()};
  agent.session = options_.session;
  agent.session.memory = pool.memory;
  agent.clock = options_.clock;
  agent.carrier = options_.carrier;
  agent.executor = executor_;
  agent.timers = timers_;
  agent.logger = options_.logger;
  PSD_ASSIGN_OR_RETURN(agent_, rpc::RpcAgent::Create(std::move(agent)));

  store::StoreOptions store;
  store.memory = options_.memory->hosted();
  store_ = store::Store::Create(std::move(store), ids_);
  rrefs_ = rref::RRefContext::Create(*agent_, *store_, ids_, *options_.clock, *timers_,
                                     continuations_, pool.memory);
  peers_ = std::make_unique<PeerDirectory>(*agent_);
  peers_->SetRegistrar(options_.registrar);
  rrefs_->FindPeersWith([this](const std::string& worker) { return peers_->Find(worker); });
  autograd_ = dist_autograd::DistAutograd::Create(
      *agent_, ids_, *timers_, *executor_,
      options_.memory->limit_bytes() != 0 ? options_.memory : nullptr);
  programs_ = std::make_unique<program::ProgramCache>(options_.program_cache_entries);
  values_ = std::make_unique<ValueService>(*this);
  calls_ = std::make_unique<CallService>(*this);
  gradients_ = std::make_unique<GradientService>(*this);
  optimizer_service_ = std::make_unique<OptimizerService>(*this);
  rows_ = std::make_unique<RowsService>(*this);
  checkpoints_ = std::make_unique<CheckpointService>(*this);
  saves_ = std::make_unique<SaveService>(*this);
  info_ = std::make_unique<InfoService>(*this);
  status_ = std::make_unique<StatusService>(*this);
  return absl::OkStatus();
}

Runtime::~Runtime() {
  Shutdown(absl::ZeroDuration());
}

absl::StatusOr<std::string> Runtime::Start() {
  PSD_RETURN_IF_ERROR(CheckRoomForThreads("the network library", NetworkThreads()));
  PSD_ASSIGN_OR_RETURN(const std::string bound, agent_->Start(options_.listen));
  PSD_ASSIGN_OR_RETURN(address_, AdvertisedAddress(bound, options_.advertise));
  return address_;
}

void Runtime::Shutdown(absl::Duration drain) {
  if (agent_ == nullptr) return;
  const absl::Time until = Clock::Steady().Now() + drain;
  if (drain > absl::ZeroDuration()) {
    agent_->BeginDraining();
    agent_->AwaitIdle(drain);  // functions may need the references that this worker holds
  }
  if (rrefs_ != nullptr) rrefs_->ReleaseAll();
  agent_->Shutdown(std::max(until - Clock::Steady().Now(), absl::ZeroDuration()));
  timers_->Stop();
  // The executor goes first: its functions may wait for callbacks, which run until it has stopped.
  executor_->Shutdown();
  continuations_->Shutdown();
}

}  // namespace psd::worker
