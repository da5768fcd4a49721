#pragma once

// Workers in this process with devices.

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/workload.h"
#include "client/psd.h"

namespace psd::bench {

// Starts a worker that listens and has all devices of the environment. It attaches to `owners`.
absl::StatusOr<std::unique_ptr<Worker>> StartOnDevices(const Environment& environment,
                                                       const std::string& name,
                                                       std::vector<OwnerAddress> owners = {});

// Creates a parameter, or attaches to it. `device` is one of the owner's.
absl::StatusOr<RRef> CreateOn(Worker& worker, const std::string& owner, const std::string& name,
                              const Program& create, const std::string& device);

// Returns the values as variables on `device`, one of the worker's own, recorded in `context` if it
// is not null.
absl::StatusOr<std::vector<Variable>> FetchTo(Worker& worker, const std::vector<RRef>& values,
                                              const std::string& device,
                                              const Context* context = nullptr);

}  // namespace psd::bench
