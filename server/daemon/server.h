#pragma once

// A daemon as a library: an owner with the services of a daemon. A daemon with functions of its own
// needs only this main:
//
//   int main(int argc, char** argv) {
//     psd::services::FunctionRegistry functions;
//     PSD_CHECK(functions.Register("scale", Scale).ok(), "a name is taken");
//     return psd::server::RunDaemon(argc, argv, {std::move(functions)});
//   }

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/log.h"
#include "core/optim/options/optimizer_registry.h"
#include "core/rpc/registrar/registrar_client.h"
#include "core/runtime/runtime.h"
#include "core/services/calls/functions.h"
#include "server/daemon/config.h"
#include "server/daemon/device_watch.h"
#include "server/registrar/registrar_service.h"
#include "server/services/unary_service.h"

namespace psd::server {

// The functions and optimizer types that a daemon offers. The built-in optimizers are included.
struct ServerExtensions {
  services::FunctionRegistry functions;
  optim::OptimizerRegistry optimizers = optim::OptimizerRegistry::Builtin();
};

// Thread-safe, except for Create, Start and the destructor, which stops at once.
class Server {
 public:
  // Makes a server that does not serve yet. `logger` may be null.
  // Errors: INVALID_ARGUMENT; those of CheckpointRoot::Open and of OpenDevices.
  static absl::StatusOr<std::unique_ptr<Server>> Create(const DaemonConfig& config,
                                                        ServerExtensions extensions,
                                                        std::shared_ptr<Logger> logger);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // Starts to serve other workers, the unary service, health and reflection, all on one port. Joins
  // the job, in the background if the registrar is another daemon; a daemon with registrar_only
  // does not join. The health of a device has the name "psd.device/" and the device's. Returns the
  // address to dial.
  // Errors: UNAVAILABLE naming the address and the reason. After an error the server cannot be
  // started again.
  absl::StatusOr<std::string> Start();

  // Makes health checks report that the server stops, refuses new calls of workers and clients, and
  // leaves the job. Calls that wait for those of others (steps of a round, barriers) are answered
  // UNAVAILABLE at once, because nothing that they wait for comes any more. Waits at most `drain`
  // for running calls, then stops. May be repeated.
  void Shutdown(absl::Duration drain);

  const DaemonConfig& config() const { return config_; }
  worker::Runtime& runtime() { return *runtime_; }

 private:
  class GrpcServices;

  explicit Server(const DaemonConfig& config);

  const DaemonConfig config_;
  std::shared_ptr<GrpcServices> grpc_services_;  // shared with the carrier
  std::unique_ptr<worker::Runtime> runtime_;
  std::unique_ptr<RegistrarService> registrar_;  // null if another daemon is the registrar
  std::unique_ptr<rpc::RegistrarClient> membership_;
  std::unique_ptr<UnaryService> unary_;
  std::unique_ptr<DeviceWatch> device_watch_;  // for the health service
};

}  // namespace psd::server
