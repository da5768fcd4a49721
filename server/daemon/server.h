#pragma once

// A daemon as a library: a worker that owns, with the services of a daemon. psd's own main and a
// custom daemon's ten lines both stand on it:
//
//   int main(int argc, char** argv) {
//     psd::worker::FunctionRegistry functions;
//     PSD_CHECK(functions.Register("scale", Scale).ok(), "a name is taken");
//     return psd::server::RunDaemon(argc, argv, {std::move(functions)});
//   }

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/log.h"
#include "core/optim/options/optimizer_registry.h"
#include "core/worker/functions.h"
#include "core/worker/registrar_client.h"
#include "core/worker/runtime.h"
#include "server/daemon/config.h"
#include "server/registrar/registrar_service.h"
#include "server/services/unary_service.h"

namespace psd::server {

// What a daemon offers beside the built-in.
struct ServerExtensions {
  worker::FunctionRegistry functions;
  optim::OptimizerRegistry optimizers = optim::OptimizerRegistry::Builtin();
};

// Thread-safe but for its beginning and end. Destroying it stops at once.
class Server {
 public:
  // Assembles, does not serve yet. `logger` may be null.
  // Errors: INVALID_ARGUMENT; those of CheckpointRoot::Open.
  static absl::StatusOr<std::unique_ptr<Server>> Create(const DaemonConfig& config,
                                                        ServerExtensions extensions,
                                                        std::shared_ptr<Logger> logger);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // Serves: between workers, the unary service, health and reflection, all on one port. Joins
  // through the registrar, in the background if that is another. Returns the dialable address.
  // Errors: UNAVAILABLE naming the address and the reason; such a server cannot be started again.
  absl::StatusOr<std::string> Start();

  // Tells health checks, refuses new calls, leaves the job, waits at most `drain` for calls that
  // run, then stops. May be repeated.
  void Shutdown(absl::Duration drain);

  const DaemonConfig& config() const { return config_; }
  worker::Runtime& runtime() { return *runtime_; }

 private:
  class GrpcServices;

  explicit Server(const DaemonConfig& config);

  const DaemonConfig config_;
  std::shared_ptr<GrpcServices> grpc_services_;  // shared with the carrier
  std::unique_ptr<worker::Runtime> runtime_;
  std::unique_ptr<RegistrarService> registrar_;  // null: another daemon is it
  std::unique_ptr<worker::RegistrarClient> membership_;
  std::unique_ptr<UnaryService> unary_;
};

}  // namespace psd::server
