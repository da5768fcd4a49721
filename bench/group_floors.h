#pragma once

// The floor of an all-reduce of ranks on one machine: the memory traffic of a reduce-scatter and an
// all-gather, and the two times that all ranks wait for each other.

#include <cstddef>
#include <memory>
#include <vector>

#include "bench/floors.h"

namespace psd::bench {

// One thread for each rank. Thread-compatible.
class AllReduceFloor {
 public:
  // `elements` is the number of floats of each rank. Requires: a multiple of 16, and at least one
  // rank.
  AllReduceFloor(int ranks, size_t elements);

  // Reduces so many times: each rank sums its part of all inputs, in the order of the ranks, and
  // then copies the sums of the others. Returns the seconds that each time takes.
  std::vector<double> Run(int times);

  const MappedFloats& input(int rank) const { return *inputs_[static_cast<size_t>(rank)]; }
  const MappedFloats& result(int rank) const { return *results_[static_cast<size_t>(rank)]; }

 private:
  class Barrier;
  // The index of the first element of a rank's part.
  size_t FirstOf(size_t rank) const { return rank * elements_ / inputs_.size(); }
  void AllReduce(size_t rank, Barrier& barrier);

  const size_t elements_;
  std::vector<std::unique_ptr<MappedFloats>> inputs_, results_;  // by rank
};

}  // namespace psd::bench
