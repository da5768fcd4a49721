#pragma once

// The peer that psd is compared with: PyTorch RPC, driven block by block over a pipe.

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
  // Errors: FAILED_PRECONDITION saying what to install when it is not there.
  static absl::StatusOr<std::unique_ptr<Peer>> Start(const std::string& script,
                                                     const std::string& transport);

  // "torch-rpc-1.13.0a0 tcp".
  const std::string& description() const { return description_; }

  // Makes what the case needs; warms up.
  absl::Status StartCase(const std::string& name);
  // One block: the median cost of an operation, in seconds.
  absl::StatusOr<double> RunBlock(const std::string& name);
  absl::Status StopCase(const std::string& name);

 private:
  explicit Peer(std::unique_ptr<Process> process) : process_(std::move(process)) {}
  absl::StatusOr<std::string> Ask(const std::string& request);

  const std::unique_ptr<Process> process_;
  std::string description_;
};

}  // namespace psd::bench
