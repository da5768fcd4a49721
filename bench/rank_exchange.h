#pragma once

// How the ranks of a floor, each a thread of this process, give each other parts of their floats.

#include <cstddef>
#include <memory>
#include <vector>

#include "bench/floors.h"
#include "bench/rank_links.h"

namespace psd::bench {

// The floats of each rank, by rank. Part j of an array lies between FirstOf(j) and FirstOf(j + 1).
class RankFloats {
 public:
  // Requires: `elements` is a multiple of 16, and there is at least one rank.
  RankFloats(int ranks, size_t elements);

  size_t ranks() const { return inputs_.size(); }
  size_t elements() const { return elements_; }
  float* input(size_t rank) const { return inputs_[rank]->data(); }
  float* result(size_t rank) const { return results_[rank]->data(); }
  // A multiple of 16.
  size_t FirstOf(size_t part) const { return part * (elements_ / 16) / inputs_.size() * 16; }
  size_t SizeOf(size_t part) const { return FirstOf(part + 1) - FirstOf(part); }

  // Sets part `rank` of the rank's result to the sum of these parts, one of each rank, in the order
  // of the ranks.
  void SumPart(size_t rank, const std::vector<const float*>& parts) const;

 private:
  const size_t elements_;
  std::vector<std::unique_ptr<MappedFloats>> inputs_, results_;
};

// Each function is called by the threads of all ranks, as often by one as by any other.
class RankExchange {
 public:
  virtual ~RankExchange() = default;
  // Sums part `rank` of all inputs into the rank's result. The rank's input is complete.
  virtual void ReduceScatter(size_t rank) = 0;
  // Copies part j of the result of every other rank j into the rank's result.
  virtual void AllGather(size_t rank) = 0;
};

// Ranks read the memory of the others. `floats` must outlive the exchange.
std::unique_ptr<RankExchange> ExchangeInMemory(const RankFloats& floats);

// Ranks send their parts to the others. `floats` must outlive the exchange.
std::unique_ptr<RankExchange> ExchangeOver(std::unique_ptr<RankLinks> links,
                                           const RankFloats& floats);

}  // namespace psd::bench
