#pragma once

// One rank of a training with replicas, started by psctl run.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/collectives/group.h"
#include "client/ddp/replica.h"
#include "client/psd.h"

namespace psd::examples {

// Joins the job that the environment describes and the group of all its ranks, calls `work`, and
// leaves. If `work` fails, the other ranks are told why, so that they need not wait for this one.
// Errors: those of `work`, as Group::Fail returns them, of WorkerOptions::FromEnvironment, Worker
// and Group.
absl::Status RunRank(
    const std::function<absl::Status(Worker& worker, const std::shared_ptr<Group>& group)>& work);

// Returns a parameter whose elements are uniform in [-bound, bound) and depend only on the seed, so
// that they are the same on all ranks.
absl::StatusOr<ReplicaParameter> UniformParameter(std::string name, const Shape& shape,
                                                  double bound, uint64_t seed);

// Returns the mean of the ranks' numbers. All ranks call it.
absl::StatusOr<double> MeanOverRanks(Group& group, double number);

}  // namespace psd::examples
