#include "core/store/memory_budget.h"

#include <atomic>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace psd::store {
namespace {

using ::testing::HasSubstr;

class RefusingAllocator : public Allocator {
 public:
  absl::StatusOr<std::shared_ptr<Block>> Allocate(size_t) override {
    return absl::ResourceExhaustedError("none here");
  }
};

TEST(MemoryBudget, CountsWhatLives) {
  auto budget = MemoryBudget::Create(1000, NewHeapAllocator());
  auto a = *budget->Allocate(600);
  EXPECT_EQ(budget->used_bytes(), 600u);
  auto b = *budget->Allocate(400);
  EXPECT_EQ(budget->used_bytes(), 1000u);
  EXPECT_TRUE(budget->Allocate(0).ok());
  a.reset();
  EXPECT_EQ(budget->used_bytes(), 400u);
  b.reset();
  EXPECT_EQ(budget->used_bytes(), 0u);
}

TEST(MemoryBudget, RefusalNamesNeedBudgetAndUse) {
  auto budget = MemoryBudget::Create(1000, NewHeapAllocator());
  auto a = *budget->Allocate(600);
  auto refused = budget->Allocate(401);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(refused.status().message(), HasSubstr("401"));
  EXPECT_THAT(refused.status().message(), HasSubstr("1000"));
  EXPECT_THAT(refused.status().message(), HasSubstr("600"));
  EXPECT_FALSE(budget->Allocate(SIZE_MAX).ok());
  EXPECT_EQ(budget->used_bytes(), 600u);
}

TEST(MemoryBudget, WithoutLimitItStillCounts) {
  auto budget = MemoryBudget::Create(0, NewHeapAllocator());
  auto a = *budget->Allocate(5000);
  EXPECT_EQ(budget->used_bytes(), 5000u);
  EXPECT_FALSE(budget->Allocate(SIZE_MAX - 10).ok());
  EXPECT_EQ(budget->used_bytes(), 5000u);
}

TEST(MemoryBudget, RefusalBelowChargesNothing) {
  auto budget = MemoryBudget::Create(1000, std::make_shared<RefusingAllocator>());
  EXPECT_FALSE(budget->Allocate(10).ok());
  EXPECT_EQ(budget->used_bytes(), 0u);
}

TEST(MemoryBudget, ChargesForMemoryFromElsewhereUntilTheLastCopyGoes) {
  auto budget = MemoryBudget::Create(1000, NewHeapAllocator());
  MemoryCharge charge = *budget->Charge(700);
  MemoryCharge copy = charge;
  EXPECT_EQ(budget->used_bytes(), 700u);
  EXPECT_EQ(*budget->Charge(0), nullptr);
  const absl::Status refused = budget->Charge(400).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  for (const char* number : {"400", "1000", "700"}) {
    EXPECT_NE(refused.message().find(number), std::string::npos) << refused;
  }
  charge.reset();
  EXPECT_EQ(budget->used_bytes(), 700u);
  copy.reset();
  EXPECT_EQ(budget->used_bytes(), 0u);
}

TEST(MemoryBudget, BlocksOutliveIt) {
  auto budget = MemoryBudget::Create(1000, NewHeapAllocator());
  auto block = *budget->Allocate(64);
  budget.reset();
  block->data()[63] = std::byte{1};
}

TEST(MemoryBudget, ExactUnderConcurrency) {
  constexpr size_t kLimit = 64 * 10;
  auto budget = MemoryBudget::Create(kLimit, NewHeapAllocator());
  std::atomic<bool> exceeded{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&] {
      std::vector<std::shared_ptr<Block>> held;
      for (int i = 0; i < 2000; ++i) {
        auto block = budget->Allocate(64);
        if (block.ok()) held.push_back(*std::move(block));
        if (budget->used_bytes() > kLimit) exceeded = true;
        if (held.size() > 3) held.clear();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_FALSE(exceeded);
  EXPECT_EQ(budget->used_bytes(), 0u);
}

}  // namespace
}  // namespace psd::store
