#pragma once

// Starts the owner of a case, which is a psd daemon, alone or as a job with this process as its
// trainer.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bench/process.h"
#include "bench/server.h"
#include "bench/workload.h"
#include "client/psd.h"

namespace psd::bench {

inline constexpr char kOwner[] = "owner0";

// Starts the psd daemon of a case. `flags` are additional flags.
absl::StatusOr<std::unique_ptr<Server>> StartOwner(const Environment& environment,
                                                   const std::vector<std::string>& flags = {});

// Thread-compatible.
class Job {
 public:
  // `flags` are additional flags of the owner.
  static absl::StatusOr<std::unique_ptr<Job>> Start(const Environment& environment,
                                                    const std::vector<std::string>& flags = {});

  Worker& worker() { return *worker_; }
  const Process& owner() const { return owner_->process(); }
  const std::string& address() const { return owner_->address(); }

 private:
  std::unique_ptr<Server> owner_;  // ends after the worker
  std::unique_ptr<Worker> worker_;
};

// Attaches a worker to the owner at `address`.
absl::StatusOr<std::unique_ptr<Worker>> Attach(const std::string& name, const std::string& address);

// Creates parameters "<prefix>0", "<prefix>1", … of `elements` floats, uniform in [-0.1, 0.1).
absl::StatusOr<std::vector<RRef>> CreateParameters(Worker& worker, const std::string& prefix,
                                                   int count, int64_t elements);

// Returns the time of each of `count` calls of `operation`, in seconds, or the first error.
absl::StatusOr<std::vector<double>> TimeEach(int count,
                                             const std::function<absl::Status()>& operation);

}  // namespace psd::bench
