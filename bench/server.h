#pragma once

// A server of a case: the owner, or the other end of a floor.

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/process.h"
#include "bench/workload.h"

namespace psd::bench {

// A process behind the network of the environment. Thread-compatible.
class Server {
 public:
  // Starts `command`, which must listen on a free port of environment.network.host and print its
  // address "HOST:PORT" when it serves. Errors: those of Process.
  static absl::StatusOr<std::unique_ptr<Server>> Start(const Environment& environment,
                                                       const std::vector<std::string>& command);

  // Returns the address at which this process reaches the server.
  const std::string& address() const { return address_; }
  const Process& process() const { return *process_; }

 private:
  std::unique_ptr<Process> process_;
  std::unique_ptr<Process> route_;  // delays what is sent; null if the network has no delay
  std::string address_;
};

}  // namespace psd::bench
