#pragma once

// Floors of the work of a group whose ranks are on one machine, one thread for each rank: what goes
// between the ranks, over the bare memory, bare TCP or bare gRPC, and the arithmetic, fused.

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/floors.h"
#include "bench/rank_exchange.h"

namespace psd::bench {

// Thread-compatible.
class GroupFloor {
 public:
  // `task` is one of RankOptions: "allreduce" reduces `elements` floats of each rank; "ddp_step"
  // also computes as many gradients before, and steps Adam on every rank after it; in "zero_step"
  // every rank steps Adam on its part of the parameters, and gives it to the others. `way` is how
  // bytes go from rank to rank: "memory", "tcp" or "grpc". Requires: `elements` is a multiple of
  // 16, and there is at least one rank. Errors: INVALID_ARGUMENT if there is no such task or way;
  // those of LinkOverTcp and LinkOverGrpc.
  static absl::StatusOr<std::unique_ptr<GroupFloor>> Create(const std::string& task,
                                                            const std::string& way, int ranks,
                                                            size_t elements);

  // Does the work so many times. Returns the seconds that each time takes.
  std::vector<double> Run(int times) const;

  const RankFloats& floats() const { return floats_; }

 private:
  // The arrays of a rank for Adam and the gradients. The gradients themselves are its input.
  struct Arithmetic {
    explicit Arithmetic(size_t elements);
    MappedFloats parameters, coefficients, first_moments, second_moments, next;
  };
  using Work = std::function<void(size_t rank)>;

  GroupFloor(int ranks, size_t elements) : floats_(ranks, elements) {}
  Work WorkOf(const std::string& task);

  const RankFloats floats_;
  std::unique_ptr<RankExchange> exchange_;
  std::vector<std::unique_ptr<Arithmetic>> arithmetic_;  // by rank; empty for "allreduce"
  Work work_;
};

}  // namespace psd::bench
