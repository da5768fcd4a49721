#include "server/daemon/server.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/clock.h"
#include "core/base/device.h"
#include "core/base/memory_budget.h"
#include "core/base/status.h"
#include "core/carrier/grpc/grpc_factory.h"
#include "core/carrier/grpc/grpc_server_hook.h"
#include "core/carrier/passed_descriptors.h"
#include "core/carrier/shm/host_factory.h"
#include "core/checkpoint/checkpoint_root.h"
#include "core/runtime/worker_memory.h"
#include "server/daemon/devices.h"
#include "server/services/health_service.h"
#include "server/services/reflection_service.h"

namespace psd::server {
namespace {

constexpr char kUnaryServiceName[] = "psd.v1.ParameterService";

// Returns the name by which the health service knows a device.
std::string DeviceServiceName(absl::string_view device) {
  return absl::StrCat("psd.device/", device);
}

void LogRefusing(Logger& logger, const absl::Status& why) {
  if (why.ok()) {
    logger.Log(LogLevel::kInfo, "connections_taken", "connections are accepted again");
  } else {
    logger.Log(LogLevel::kError, "connections_refused", why.message());
  }
}

void LogLost(Logger& logger, const Device& device, const absl::Status& why) {
  logger.Log(LogLevel::kError, "device_lost", why.message(), {{"device", device.name()}});
}

absl::StatusOr<std::shared_ptr<carrier::Carrier>> MakeCarrier(
    std::shared_ptr<carrier::GrpcServerHook> hook, std::shared_ptr<MemoryBudget> memory,
    const carrier::SharedMemoryUse& shared_memory, const std::shared_ptr<Logger>& logger,
    std::shared_ptr<carrier::DescriptorUser> descriptors) {
  carrier::GrpcCarrierOptions options;
  options.memory = std::move(memory);
  options.server_hook = std::move(hook);
  options.on_refusing = [logger](const absl::Status& why) { LogRefusing(*logger, why); };
  return carrier::NewHostCarrier(options, shared_memory, logger, std::move(descriptors));
}

worker::RuntimeOptions ToRuntimeOptions(const DaemonConfig& config, ServerExtensions extensions,
                                        std::shared_ptr<Logger> logger) {
  worker::RuntimeOptions options;
  options.name = config.name;
  options.listen = config.listen;
  options.advertise = config.advertise;
  options.threads = config.threads;
  options.max_queued_functions = static_cast<size_t>(config.max_queued_functions);
  options.memory =
      worker::NewWorkerBudget(config.memory_budget_bytes, config.shared_memory, logger);
  options.shared_memory = config.shared_memory;
  options.shared_memory_folder = config.shared_memory_folder;
  options.share_devices = config.share_devices;
  options.session.lease = config.lease;
  options.session.retry_window = config.retry_window;
  options.registrar = config.IsRegistrar() ? config.name : config.registrar_name;
  options.logger = std::move(logger);
  options.functions = std::move(extensions.functions);
  options.optimizers = std::move(extensions.optimizers);
  return options;
}

}  // namespace

// The gRPC services that share the carrier's port.
class Server::GrpcServices : public carrier::GrpcServerHook {
 public:
  // `devices` are those of the daemon.
  explicit GrpcServices(absl::Span<const DeviceConfig> devices) {
    for (const DeviceConfig& device : devices)
      service_names_.push_back(DeviceServiceName(device.name()));
  }

  // Must be called before the carrier listens. `unary` outlives the carrier.
  void Set(UnaryService& unary) { unary_ = &unary; }

  void Configure(grpc::ServerBuilder& builder) override {
    unary_->Register(builder);
    health_.Register(builder);
    reflection_.Register(builder);
  }

  void Started(carrier::ServiceHost& host) override {
    SetServing(true);
    unary_->Serve(host);
    health_.Serve(host);
    reflection_.Serve(host);
  }

  void SetServing(bool serving) {
    for (const std::string& name : service_names_) health_.SetServing(name, serving);
  }
  void SetLost(const Device& device) {
    health_.SetServing(DeviceServiceName(device.name()), false);
  }

 private:
  std::vector<std::string> service_names_ = {"", kUnaryServiceName};  // of the health service
  UnaryService* unary_ = nullptr;
  HealthService health_;
  ReflectionService reflection_{
      {kUnaryServiceName, "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}};
};

Server::Server(const DaemonConfig& config)
    : config_(config), grpc_services_(std::make_shared<GrpcServices>(config.devices)) {}

absl::StatusOr<std::unique_ptr<Server>> Server::Create(const DaemonConfig& config,
                                                       ServerExtensions extensions,
                                                       std::shared_ptr<Logger> logger) {
  std::unique_ptr<Server> server(new Server(config));
  if (logger == nullptr) logger = NewNullLogger();
  worker::RuntimeOptions options = ToRuntimeOptions(config, std::move(extensions), logger);
  PSD_ASSIGN_OR_RETURN(options.devices,
                       OpenDevices(config.devices, {config.share_devices, config.allow_tf32}));
  options.new_carrier = [hook = server->grpc_services_, memory = options.memory,
                         shared_memory = carrier::SharedMemoryUse{config.shared_memory,
                                                                  config.shared_memory_folder,
                                                                  config.advertise},
                         logger](std::shared_ptr<carrier::DescriptorUser> descriptors) {
    return MakeCarrier(hook, memory, shared_memory, logger, std::move(descriptors));
  };
  if (!config.checkpoint_root.empty()) {
    PSD_ASSIGN_OR_RETURN(options.checkpoint_root,
                         checkpoint::CheckpointRoot::Open(config.checkpoint_root));
  }
  PSD_ASSIGN_OR_RETURN(server->runtime_, worker::Runtime::Create(std::move(options)));
  worker::Runtime& runtime = *server->runtime_;
  if (config.IsRegistrar())
    server->registrar_ = std::make_unique<RegistrarService>(
        runtime.agent(), runtime.timers(), runtime.logger(),
        std::set<std::string>(config.owners.begin(), config.owners.end()));
  if (config.registrar_only) runtime.agent().access().RefuseHosting();
  server->membership_ =
      std::make_unique<rpc::RegistrarClient>(runtime.agent(), runtime.timers(), runtime.logger());
  GatewayOptions sessions;
  sessions.lease = config.lease;
  sessions.memory = runtime.options().memory;
  const UnaryService::Uses uses{
      runtime.agent(),  runtime.values(),   runtime.gradients(),     runtime.optimizer_service(),
      runtime.status(), runtime.autograd(), runtime.memory(),        runtime.executor(),
      runtime.timers(), runtime.logger(),   *runtime.options().clock};
  server->unary_ = std::make_unique<UnaryService>(uses, sessions);
  server->grpc_services_->Set(*server->unary_);
  server->device_watch_ = std::make_unique<DeviceWatch>(
      runtime.options().devices, runtime.timers(),
      [services = server->grpc_services_, logger](const Device& device, const absl::Status& why) {
        LogLost(*logger, device, why);
        services->SetLost(device);
      });
  return server;
}

Server::~Server() {
  Shutdown(absl::ZeroDuration());
}

absl::StatusOr<std::string> Server::Start() {
  PSD_ASSIGN_OR_RETURN(std::string address, runtime_->Start());
  device_watch_->Start();
  // A registrar without values does not join the job, so that it is not taken for an owner.
  if (config_.registrar_only) return address;
  rpc::JoinOptions join;
  join.registrar = runtime_->options().registrar;
  join.role = rpc::WorkerRole::kOwner;
  join.address = address;
  if (!config_.IsRegistrar())
    runtime_->agent().AddPeer(config_.registrar_name, config_.registrar_address);
  membership_->KeepJoined(join);
  return address;
}

void Server::Shutdown(absl::Duration drain) {
  if (runtime_ == nullptr) return;
  grpc_services_->SetServing(false);
  if (membership_ != nullptr) membership_->Stop();
  const absl::Time until = Clock::Steady().Now() + drain;
  // Clients and workers drain together: a step of one may wait for a step of the other.
  runtime_->agent().admission().BeginDraining();
  if (drain > absl::ZeroDuration()) runtime_->agent().BeginDraining();
  if (unary_ != nullptr) unary_->AwaitDrained(drain);
  runtime_->Shutdown(std::max(until - Clock::Steady().Now(), absl::ZeroDuration()));
}

}  // namespace psd::server
