#include "bench/rank_exchange.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>
#include <utility>

namespace psd::bench {
namespace {

constexpr size_t kBlock = 4096;  // floats that stay in the first cache while they are summed

// Lets threads go on when all have come. They yield while they wait, and do not sleep.
class Barrier {
 public:
  explicit Barrier(size_t threads) : threads_(threads) {}

  void Wait() {
    const size_t turn = turn_.load(std::memory_order_acquire);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == threads_) {
      arrived_.store(0, std::memory_order_relaxed);
      turn_.store(turn + 1, std::memory_order_release);
      return;
    }
    while (turn_.load(std::memory_order_acquire) == turn) std::this_thread::yield();
  }

 private:
  const size_t threads_;
  std::atomic<size_t> arrived_{0};
  std::atomic<size_t> turn_{0};
};

class MemoryExchange : public RankExchange {
 public:
  explicit MemoryExchange(const RankFloats& floats) : floats_(floats), barrier_(floats.ranks()) {}

  void ReduceScatter(size_t rank) override {
    barrier_.Wait();  // until all inputs are there
    std::vector<const float*> parts;
    for (size_t from = 0; from < floats_.ranks(); ++from)
      parts.push_back(floats_.input(from) + floats_.FirstOf(rank));
    floats_.SumPart(rank, parts);
  }

  void AllGather(size_t rank) override {
    barrier_.Wait();  // until all parts are there
    for (size_t part = 0; part < floats_.ranks(); ++part) {
      if (part == rank) continue;
      const size_t first = floats_.FirstOf(part);
      std::memcpy(floats_.result(rank) + first, floats_.result(part) + first,
                  floats_.SizeOf(part) * sizeof(float));
    }
    barrier_.Wait();  // until all have copied them
  }

 private:
  const RankFloats& floats_;
  Barrier barrier_;
};

class LinkedExchange : public RankExchange {
 public:
  LinkedExchange(std::unique_ptr<RankLinks> links, const RankFloats& floats)
      : links_(std::move(links)), floats_(floats), received_(floats.ranks()) {
    for (size_t rank = 0; rank < floats.ranks(); ++rank) {
      for (size_t from = 0; from < floats.ranks(); ++from) {
        received_[rank].push_back(
            from == rank ? nullptr : std::make_unique<MappedFloats>(floats.SizeOf(rank)));
      }
    }
  }

  void ReduceScatter(size_t rank) override {
    std::vector<Parcel> parcels;
    std::vector<const float*> parts;
    for (size_t other = 0; other < floats_.ranks(); ++other) {
      if (other == rank) {
        parts.push_back(floats_.input(rank) + floats_.FirstOf(rank));
        continue;
      }
      float* const to = received_[rank][other]->data();
      parcels.push_back({other, floats_.input(rank) + floats_.FirstOf(other), floats_.SizeOf(other),
                         to, floats_.SizeOf(rank)});
      parts.push_back(to);
    }
    links_->Exchange(rank, parcels);
    floats_.SumPart(rank, parts);
  }

  void AllGather(size_t rank) override {
    std::vector<Parcel> parcels;
    float* const result = floats_.result(rank);
    for (size_t other = 0; other < floats_.ranks(); ++other) {
      if (other == rank) continue;
      parcels.push_back({other, result + floats_.FirstOf(rank), floats_.SizeOf(rank),
                         result + floats_.FirstOf(other), floats_.SizeOf(other)});
    }
    links_->Exchange(rank, parcels);
  }

 private:
  const std::unique_ptr<RankLinks> links_;
  const RankFloats& floats_;
  std::vector<std::vector<std::unique_ptr<MappedFloats>>>
      received_;  // by rank and sender; null from itself
};

}  // namespace

RankFloats::RankFloats(int ranks, size_t elements) : elements_(elements) {
  for (int rank = 0; rank < ranks; ++rank) {
    inputs_.push_back(std::make_unique<MappedFloats>(elements));
    results_.push_back(std::make_unique<MappedFloats>(elements));
  }
}

void RankFloats::SumPart(size_t rank, const std::vector<const float*>& parts) const {
  float* const result = this->result(rank) + FirstOf(rank);
  const size_t size = SizeOf(rank);
  for (size_t first = 0; first < size; first += kBlock) {
    const size_t block = std::min(kBlock, size - first);
    std::memcpy(result + first, parts[0] + first, block * sizeof(float));
    for (size_t from = 1; from < parts.size(); ++from) {
      for (size_t i = first; i < first + block; ++i) result[i] += parts[from][i];
    }
  }
}

std::unique_ptr<RankExchange> ExchangeInMemory(const RankFloats& floats) {
  return std::make_unique<MemoryExchange>(floats);
}

std::unique_ptr<RankExchange> ExchangeOver(std::unique_ptr<RankLinks> links,
                                           const RankFloats& floats) {
  return std::make_unique<LinkedExchange>(std::move(links), floats);
}

}  // namespace psd::bench
