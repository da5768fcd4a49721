#pragma once

// What is behind the public face's Worker. Internal to client/.

#include <atomic>
#include <memory>

#include "client/psd.h"
#include "core/worker/registrar_client.h"
#include "core/worker/runtime.h"

namespace psd {

struct Worker::State {
  WorkerOptions options;
  std::unique_ptr<worker::Runtime> runtime;
  std::unique_ptr<worker::RegistrarClient> registrar_client;
  std::atomic<bool> shut_down{false};

  absl::Status Attach();
  absl::Status JoinWorld();
  rpc::CallOptions ToCallOptions(const CallOptions& call) const;
  absl::Status CheckRunning() const;
};

}  // namespace psd
