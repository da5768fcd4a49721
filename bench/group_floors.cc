#include "bench/group_floors.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>

#include "absl/time/time.h"
#include "core/base/clock.h"

namespace psd::bench {
namespace {

constexpr size_t kBlock = 4096;  // floats that stay in the first cache while they are summed

// Adds `size` elements of all inputs up.
void SumBlock(const std::vector<std::unique_ptr<MappedFloats>>& inputs, size_t first, size_t size,
              float* sum) {
  std::memcpy(sum, inputs[0]->data() + first, size * sizeof(float));
  for (size_t rank = 1; rank < inputs.size(); ++rank) {
    const float* input = inputs[rank]->data() + first;
    for (size_t i = 0; i < size; ++i) sum[i] += input[i];
  }
}

}  // namespace

// Lets threads go on when all have come. They yield while they wait, and do not sleep.
class AllReduceFloor::Barrier {
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

AllReduceFloor::AllReduceFloor(int ranks, size_t elements) : elements_(elements) {
  for (int rank = 0; rank < ranks; ++rank) {
    inputs_.push_back(std::make_unique<MappedFloats>(elements));
    results_.push_back(std::make_unique<MappedFloats>(elements));
  }
}

std::vector<double> AllReduceFloor::Run(int times) {
  Barrier barrier(inputs_.size());
  std::vector<std::thread> others;
  for (size_t rank = 1; rank < inputs_.size(); ++rank) {
    others.emplace_back([this, rank, times, &barrier] {
      for (int i = 0; i < times; ++i) AllReduce(rank, barrier);
    });
  }
  std::vector<double> seconds;
  for (int i = 0; i < times; ++i) {
    const absl::Time start = Clock::Steady().Now();
    AllReduce(0, barrier);
    seconds.push_back(absl::ToDoubleSeconds(Clock::Steady().Now() - start));
  }
  for (std::thread& other : others) other.join();
  return seconds;
}

void AllReduceFloor::AllReduce(size_t rank, Barrier& barrier) {
  float* result = results_[rank]->data();
  const size_t end = FirstOf(rank + 1);
  for (size_t first = FirstOf(rank); first < end; first += kBlock)
    SumBlock(inputs_, first, std::min(kBlock, end - first), result + first);
  barrier.Wait();  // until all sums are there
  for (size_t other = 0; other < inputs_.size(); ++other) {
    if (other == rank) continue;
    const size_t first = FirstOf(other);
    std::memcpy(result + first, results_[other]->data() + first,
                (FirstOf(other + 1) - first) * sizeof(float));
  }
  barrier.Wait();  // until all have copied them
}

}  // namespace psd::bench
