// A worker gives freed memory back to the system that nothing uses again.

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/base/buffer.h"
#include "core/base/clock.h"
#include "core/base/memory_budget.h"
#include "core/base/result_memory.h"
#include "core/base/timer.h"
#include "core/runtime/runtime.h"

namespace psd::worker {
namespace {

// Counts how often it is asked to give back what is not used.
class AskedAllocator : public Allocator {
 public:
  absl::StatusOr<std::shared_ptr<Block>> Allocate(size_t bytes) override {
    return heap_->Allocate(bytes);
  }
  void ReleaseUnused() override { ++asked_; }
  int asked() const { return asked_; }

 private:
  const std::shared_ptr<Allocator> heap_ = NewHeapAllocator();
  std::atomic<int> asked_{0};
};

TEST(ReleasedMemoryTest, IsThatOfTheBudgetAndOfResultsWithoutSharedMemory) {
  FakeClock clock;
  const auto budget = std::make_shared<AskedAllocator>();
  const auto results = std::make_shared<AskedAllocator>();
  const ResultMemoryScope scope(results);
  RuntimeOptions options;
  options.name = "worker";
  options.shared_memory = false;
  options.clock = &clock;
  options.memory = MemoryBudget::Create(0, [&](size_t) { return budget; });
  const auto runtime = Runtime::Create(std::move(options));
  ASSERT_TRUE(runtime.ok()) << runtime.status();
  const auto both = [&] { return budget->asked() >= 2 && results->asked() >= 2; };
  for (const absl::Time until = absl::Now() + absl::Seconds(30); !both() && absl::Now() < until;) {
    clock.Advance(absl::Seconds(1));
    (*runtime)->timers().Poll();
    absl::SleepFor(absl::Milliseconds(1));
  }
  EXPECT_TRUE(both()) << budget->asked() << " and " << results->asked();
}

}  // namespace
}  // namespace psd::worker
