#include "core/runtime/runtime.h"

#include <algorithm>
#include <limits>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/clock.h"
#include "core/base/host_port.h"
#include "core/base/remedy.h"
#include "core/base/shared_folder.h"
#include "core/base/start_thread.h"
#include "core/base/status.h"
#include "core/base/worker_name.h"
#include "core/carrier/grpc/grpc_factory.h"
#include "core/carrier/passed_descriptors.h"
#include "core/carrier/shm/host_factory.h"
#include "core/device_loans/device_loans.h"
#include "core/device_pieces/device_pulls.h"
#include "core/dist_autograd/exchange.h"
#include "core/rref/creation_gate.h"
#include "core/runtime/function_host.h"
#include "core/runtime/worker_memory.h"
#include "core/services/calls/call_service.h"
#include "core/services/checkpoint/checkpoint_service.h"
#include "core/services/checkpoint/save_service.h"
#include "core/services/collectives/collective_service.h"
#include "core/services/gradients/gradient_service.h"
#include "core/services/optimizers/optimizer_service.h"
#include "core/services/rows/rows_service.h"
#include "core/services/status/info_service.h"
#include "core/services/status/status_service.h"
#include "core/services/values/value_service.h"

namespace psd::worker {
namespace {

absl::StatusOr<std::shared_ptr<carrier::Carrier>> DefaultCarrier(
    const RuntimeOptions& options, std::shared_ptr<carrier::DescriptorUser> descriptors) {
  carrier::GrpcCarrierOptions grpc;
  grpc.memory = options.memory;
  grpc.start_threads = options.listen.empty();
  const carrier::SharedMemoryUse shared = {options.shared_memory, options.shared_memory_folder,
                                           options.advertise};
  return carrier::NewHostCarrier(grpc, shared, options.logger, std::move(descriptors));
}

absl::Status CheckAddresses(const RuntimeOptions& options) {
  PSD_RETURN_IF_ERROR(CheckSharedFolder(options.shared_memory_folder));
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
// callbacks and, per core, for events. gRPC does not report it if one is refused; the process would
// go on without it and hang when it stops.
int NetworkThreads() {
  return 5 + std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 2, 32);
}

// Freed memory is kept for reuse for one to two periods: longer than from one step to the next.
constexpr absl::Duration kReusePeriod = absl::Seconds(2);

absl::Duration LeftUntil(absl::Time until) {
  return std::max(until - Clock::Steady().Now(), absl::ZeroDuration());
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
  if (options.memory == nullptr)
    options.memory = NewWorkerBudget(0, options.shared_memory, options.logger);
  std::unique_ptr<Runtime> runtime(new Runtime(std::move(options)));
  PSD_RETURN_IF_ERROR(runtime->Assemble());
  return runtime;
}

Runtime::Runtime(RuntimeOptions options) : options_(std::move(options)), ids_(NewIncarnation()) {
  if (!options_.shared_memory) return;
  result_memory_ = NewWorkerAllocator(true, kKeptResultBytes, options_.logger);
  results_.emplace(result_memory_);
}

// Large steps and lookups run on as many threads of the executor as there are cores, including
// their own.
Helpers Runtime::LargeWorkHelpers() const {
  const int cores = static_cast<int>(std::thread::hardware_concurrency());  // 0 if unknown
  return {executor_.get(), std::min(options_.threads, cores) - 1};
}

absl::Status Runtime::Assemble() {
  loans_ = device_loans::DeviceLoans::Create(
      ids_.incarnation(),
      options_.share_devices ? options_.devices : std::vector<std::shared_ptr<Device>>(),
      options_.logger);
  if (options_.carrier == nullptr) {
    const auto descriptors = options_.share_devices ? loans_ : nullptr;
    PSD_ASSIGN_OR_RETURN(options_.carrier, options_.new_carrier != nullptr
                                               ? options_.new_carrier(descriptors)
                                               : DefaultCarrier(options_, descriptors));
  }
  ThreadPoolOptions pool;
  pool.purpose = "functions and steps";
  pool.threads = options_.threads;
  pool.max_queue = options_.max_queued_functions;
  // If there is no limit, the results of operators need not be charged.
  if (options_.memory->limit_bytes() != 0) pool.memory = options_.memory->transit();
  executor_ = std::make_shared<WorkThreads>(pool);
  PSD_RETURN_IF_ERROR(executor_->started());
  pool.purpose = "callbacks of futures";
  // Each future of a user has at most one entry.
  pool.max_queue = std::numeric_limits<size_t>::max();
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
  loans_->Serve(*agent_);

  std::vector<Device*> devices;
  for (const std::shared_ptr<Device>& each : options_.devices) devices.push_back(each.get());
  completions_ = std::make_unique<CompletionThreads>(devices, pool.memory);
  PSD_RETURN_IF_ERROR(completions_->started());

  store::StoreOptions store;
  store.memory = options_.memory->hosted();
  store.devices = options_.devices;
  store_ = store::Store::Create(std::move(store), ids_);
  changes_ = std::make_unique<change::Changes>(change::Changes::Uses{
      *store_, options_.optimizers, options_.program_limits, *options_.memory, LargeWorkHelpers(),
      executor_.get(), options_.journal.get(), completions_.get()});
  rrefs_ = rref::RRefContext::Create(*agent_, *store_, ids_, *options_.clock, *timers_,
                                     continuations_, pool.memory);
  peers_ = std::make_unique<rpc::PeerDirectory>(*agent_);
  peers_->SetRegistrar(options_.registrar);
  rrefs_->FindPeersWith([this](const std::string& worker) { return peers_->Find(worker); });
  pulls_ = std::make_unique<device_pieces::DevicePulls>(*agent_, *completions_, *loans_);
  autograd_ = dist_autograd::DistAutograd::Create(
      *agent_, ids_, *timers_, *executor_,
      options_.memory->limit_bytes() != 0 ? options_.memory : nullptr,
      {loans_, completions_.get(), pulls_.get(), agent_.get(), executor_.get(), options_.clock});
  creations_ = std::make_unique<rref::CreationGate>(*rrefs_, *options_.clock, *timers_);
  exchange_ = std::make_unique<dist_autograd::Exchange>(agent_->self(), *rrefs_, *autograd_);
  programs_ = std::make_unique<program::ProgramCache>(options_.program_cache_entries, pool.memory);
  values_ = std::make_unique<services::ValueService>(services::ValueService::Uses{
      *agent_, *store_, *changes_, *rrefs_, *creations_, *autograd_, *exchange_,
      *options_.operators, options_.program_limits, *executor_, continuations_, *completions_,
      *options_.clock, loans_, *pulls_});
  function_host_ = std::make_shared<RuntimeFunctionHost>(*this, agent_->self());
  calls_ = std::make_unique<services::CallService>(services::CallService::Uses{
      *agent_, *store_, *rrefs_, *creations_, *exchange_, *options_.operators,
      options_.program_limits, *programs_, options_.functions, *executor_, continuations_,
      *options_.clock, *options_.logger, function_host_});
  gradients_ = std::make_unique<services::GradientService>(services::GradientService::Uses{
      *agent_, *store_, *rrefs_, *creations_, *autograd_, *exchange_, *executor_});
  optimizer_service_ =
      std::make_unique<services::OptimizerService>(services::OptimizerService::Uses{
          *agent_, *store_, *changes_, *rrefs_, *creations_, *autograd_, *exchange_,
          options_.optimizers, ids_, *executor_, *timers_});
  rows_ = std::make_unique<services::RowsService>(
      services::RowsService::Uses{*agent_, *store_, *rrefs_, *creations_, *exchange_, *executor_,
                                  LargeWorkHelpers(), options_.program_limits});
  checkpoints_ = std::make_unique<services::CheckpointService>(services::CheckpointService::Uses{
      *agent_, *store_, *changes_, *rrefs_, *exchange_, options_.optimizers, *options_.memory,
      *executor_, options_.checkpoint_root != nullptr});
  saves_ = std::make_unique<services::SaveService>(
      services::SaveService::Uses{*agent_, *store_, checkpoints_->transfers(), *options_.memory,
                                  *executor_, *options_.logger, options_.checkpoint_root});
  collectives_ = std::make_unique<services::CollectiveService>(
      services::CollectiveGroup::Uses{*agent_, *executor_, *timers_, *options_.clock, pool.memory});
  info_ = std::make_unique<services::InfoService>(
      services::InfoService::Uses{*agent_, options_.registrar});
  status_ = std::make_unique<services::StatusService>(services::StatusService::Uses{
      *agent_, *store_, *rrefs_, *autograd_, *programs_, *options_.memory, *executor_, *peers_,
      *options_.clock, address_, *loans_});
  ReleaseUnusedLater();
  return absl::OkStatus();
}

void Runtime::ReleaseUnusedLater() {
  timers_->RunAfter(kReusePeriod, [this] {
    // If the executor is full, memory is in use, and the next time will do.
    executor_
        ->Submit([this] {
          options_.memory->ReleaseUnused();
          (result_memory_ != nullptr ? result_memory_ : ResultMemory())->ReleaseUnused();
        })
        .IgnoreError();
    ReleaseUnusedLater();
  });
}

Runtime::~Runtime() {
  Shutdown(absl::ZeroDuration());
  if (function_host_ != nullptr) function_host_->Close();
  if (loans_ != nullptr) loans_->Close();
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
  if (collectives_ != nullptr) collectives_->Close(drain);  // what groups have sent
  if (drain > absl::ZeroDuration()) {
    agent_->BeginDraining();
    agent_->AwaitIdle(LeftUntil(until));  // functions may need this worker's references
  }
  if (rrefs_ != nullptr) rrefs_->ReleaseAll();
  agent_->Shutdown(LeftUntil(until));
  timers_->Stop();
  // The executor goes first: its functions may wait for callbacks, which run until it has stopped.
  executor_->Shutdown();
  completions_->Shutdown();  // steps that the executor has begun
  continuations_->Shutdown();
}

}  // namespace psd::worker
