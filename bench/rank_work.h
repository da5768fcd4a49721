#pragma once

// One rank's part in the cases of groups: rank 0 is the benchmark, the others are helpers.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/psd.h"

namespace psd::bench {

struct RankOptions {
  int rank = 0;
  int ranks = 0;
  std::string owner;           // the address of the registrar
  bool shared_memory = false;  // between the ranks
  // The work of the ranks, with tensors of `elements` floats:
  //   allreduce   an all-reduce of one such tensor
  //   ddp_step    forward and backward of LinearLoss over `tensors` parameters, whose gradients are
  //               averaged over the ranks, and a step of Adam on every rank
  //   zero_step   a step of an Adam whose state the ranks share
  std::string task;
  int tensors = 1;  // of the steps
  int64_t elements = 0;
};

// Thread-compatible. All ranks run it equally often.
class RankWork {
 public:
  // Joins the group, which waits for the other ranks. Errors: INVALID_ARGUMENT for a task that is
  // unknown.
  static absl::StatusOr<std::unique_ptr<RankWork>> Join(const RankOptions& options);
  absl::Status Run() { return run_(); }

 private:
  std::unique_ptr<Worker> worker_;
  std::function<absl::Status()> run_;  // ends before the worker
};

}  // namespace psd::bench
