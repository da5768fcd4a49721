#include "bench/rank_exchange.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>

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

}  // namespace psd::bench
