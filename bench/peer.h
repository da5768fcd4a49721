#pragma once

// The peer with which psd is compared: PyTorch RPC, driven block by block over a pipe. It stands
// still while it has nothing to do, because over shared memory its threads look for messages
// without end, and would take processor time from psd and from the floor.

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bench/process.h"

namespace psd::bench {

// Thread-compatible.
class Peer {
 public:
  // Errors: FAILED_PRECONDITION, which names the missing packages, if PyTorch is not installed.
  static absl::StatusOr<std::unique_ptr<Peer>> Start(const std::string& script,
                                                     const std::string& transport);

  // Returns, for example, "torch-rpc-1.13.0a0 tcp".
  const std::string& description() const { return description_; }

  // Prepares a case, and warms up.
  absl::Status StartCase(const std::string& name);
  // Runs one block. Returns the median cost of an operation, in seconds.
  absl::StatusOr<double> RunBlock(const std::string& name);
  absl::Status StopCase(const std::string& name);

 private:
  explicit Peer(std::unique_ptr<Process> process) : process_(std::move(process)) {}
  absl::StatusOr<std::string> Ask(const std::string& request);

  const std::unique_ptr<Process> process_;
  std::string description_;
};

}  // namespace psd::bench
