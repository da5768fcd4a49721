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
  // The number of floats of an all-reduce; 0 means a step of a sharded Adam over kZeroParameters
  // parameters of kZeroElements floats.
  int64_t elements = 0;
};

inline constexpr int kZeroParameters = 16;
inline constexpr int64_t kZeroElements = 1'000'000;

// Thread-compatible. All ranks run it equally often.
class RankWork {
 public:
  // Joins the group, which waits for the other ranks.
  static absl::StatusOr<std::unique_ptr<RankWork>> Join(const RankOptions& options);
  absl::Status Run() { return run_(); }

 private:
  std::unique_ptr<Worker> worker_;
  std::function<absl::Status()> run_;  // ends before the worker
};

}  // namespace psd::bench
