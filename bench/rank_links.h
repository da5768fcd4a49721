#pragma once

// Connections over the loopback interface between the ranks of a floor, each a thread of this
// process.

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"

namespace psd::bench {

// The floats that a rank sends to one other rank, and the memory for those that it receives from
// that rank. The caller owns both.
struct Parcel {
  size_t other = 0;
  const float* out = nullptr;
  size_t out_elements = 0;
  float* in = nullptr;
  size_t in_elements = 0;
};

// Every two ranks are joined.
class RankLinks {
 public:
  virtual ~RankLinks() = default;
  // Sends and receives all parcels, at most one for each other rank, and returns when that is done.
  // To be called by the rank's thread. The other ranks send what this rank receives.
  virtual void Exchange(size_t rank, const std::vector<Parcel>& parcels) = 0;
};

// Bare TCP connections. Errors: UNAVAILABLE if the system refuses one.
absl::StatusOr<std::unique_ptr<RankLinks>> LinkOverTcp(size_t ranks);

// Bare streams of gRPC with psd's settings, one connection each, which carry messages of at most
// 1 MiB. What a rank receives is copied once, out of gRPC's slices. Errors: UNAVAILABLE if a rank
// cannot listen or connect.
absl::StatusOr<std::unique_ptr<RankLinks>> LinkOverGrpc(size_t ranks);

}  // namespace psd::bench
