#pragma once

// The carrier of a worker that kills or stops its own process when it should send a certain
// message.

#include <signal.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/log.h"
#include "core/base/status.h"
#include "core/carrier/carrier.h"
#include "core/carrier/grpc/grpc_factory.h"
#include "core/carrier/shm/host_factory.h"
#include "tests/core/picky_carrier.h"

namespace psd::crash {

// Sends SIGKILL to this process.
[[noreturn]] inline void Die() {
  kill(getpid(), SIGKILL);
  for (;;) pause();
}

// Stops this process. Returns when the process is continued. The signal goes to the calling thread:
// if another thread got it, this one would go on until that thread runs.
inline void Halt() {
  raise(SIGSTOP);
}

// Calls `before_sending` with every message before it is sent. The function may be called on any
// thread, and may call Die() or Halt().
inline absl::StatusOr<std::shared_ptr<carrier::Carrier>> MortalCarrier(
    std::function<void(const carrier::Message&)> before_sending, std::shared_ptr<Logger> logger) {
  PSD_ASSIGN_OR_RETURN(
      auto inner, carrier::NewHostCarrier(carrier::GrpcCarrierOptions{}, carrier::SharedMemoryUse{},
                                          std::move(logger)));
  testing::PickyRules rules;
  rules.refuses = [before_sending = std::move(before_sending)](const carrier::Message& message) {
    before_sending(message);
    return absl::OkStatus();
  };
  return std::make_shared<testing::PickyCarrier>(std::move(inner), std::move(rules));
}

}  // namespace psd::crash
