#include "core/base/memory_budget.h"

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/memory_place.h"
#include "core/base/shared_allocator.h"
#include "core/base/shared_segment.h"
#include "core/base/small_charges.h"
#include "core/base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace psd {
namespace {

using ::testing::HasSubstr;

class RefusingAllocator : public Allocator {
 public:
  absl::StatusOr<std::shared_ptr<Block>> Allocate(size_t) override {
    return absl::ResourceExhaustedError("none here");
  }
};

TEST(MemoryAccount, CountsWhatLives) {
  auto account = MemoryAccount::Create(1000, NewHeapAllocator());
  auto a = *account->Allocate(600);
  EXPECT_EQ(account->used_bytes(), 600u);
  auto b = *account->Allocate(400);
  EXPECT_EQ(account->used_bytes(), 1000u);
  EXPECT_TRUE(account->Allocate(0).ok());
  a.reset();
  EXPECT_EQ(account->used_bytes(), 400u);
  b.reset();
  EXPECT_EQ(account->used_bytes(), 0u);
}

TEST(MemoryAccount, RefusalNamesNeedBudgetAndUse) {
  auto account = MemoryAccount::Create(1000, NewHeapAllocator());
  auto a = *account->Allocate(600);
  auto refused = account->Allocate(401);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(refused.status().message(), HasSubstr("401"));
  EXPECT_THAT(refused.status().message(), HasSubstr("1000"));
  EXPECT_THAT(refused.status().message(), HasSubstr("600"));
  ASSERT_TRUE(GetDetail(refused.status()).has_value()) << refused.status();
  EXPECT_THAT(GetDetail(refused.status())->remedy, HasSubstr("raise the budget"));
  EXPECT_FALSE(account->Allocate(SIZE_MAX).ok());
  EXPECT_EQ(account->used_bytes(), 600u);
}

TEST(MemoryAccount, WithoutLimitItStillCounts) {
  auto account = MemoryAccount::Create(0, NewHeapAllocator());
  auto a = *account->Allocate(5000);
  EXPECT_EQ(account->used_bytes(), 5000u);
  EXPECT_FALSE(account->Allocate(SIZE_MAX - 10).ok());
  EXPECT_EQ(account->used_bytes(), 5000u);
}

TEST(MemoryAccount, RefusalBelowChargesNothing) {
  auto account = MemoryAccount::Create(1000, std::make_shared<RefusingAllocator>());
  EXPECT_FALSE(account->Allocate(10).ok());
  EXPECT_EQ(account->used_bytes(), 0u);
}

TEST(MemoryAccount, ChargesForMemoryFromElsewhereUntilTheLastCopyGoes) {
  auto account = MemoryAccount::Create(1000, NewHeapAllocator());
  MemoryCharge charge = *account->Charge(700);
  MemoryCharge copy = charge;
  EXPECT_EQ(account->used_bytes(), 700u);
  EXPECT_EQ(*account->Charge(0), nullptr);
  const absl::Status refused = account->Charge(400).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  for (const char* number : {"400", "1000", "700"}) {
    EXPECT_NE(refused.message().find(number), std::string::npos) << refused;
  }
  charge.reset();
  EXPECT_EQ(account->used_bytes(), 700u);
  copy.reset();
  EXPECT_EQ(account->used_bytes(), 0u);
}

TEST(MemoryAccount, BlocksOutliveIt) {
  auto account = MemoryAccount::Create(1000, NewHeapAllocator());
  auto block = *account->Allocate(64);
  account.reset();
  block->data()[63] = std::byte{1};
}

TEST(MemoryAccount, ExactUnderConcurrency) {
  constexpr size_t kLimit = 64 * 10;
  auto account = MemoryAccount::Create(kLimit, NewHeapAllocator());
  std::atomic<bool> exceeded{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&] {
      std::vector<std::shared_ptr<Block>> held;
      for (int i = 0; i < 2000; ++i) {
        auto block = account->Allocate(64);
        if (block.ok()) held.push_back(*std::move(block));
        if (account->used_bytes() > kLimit) exceeded = true;
        if (held.size() > 3) held.clear();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_FALSE(exceeded);
  EXPECT_EQ(account->used_bytes(), 0u);
}

// A budget of 3,200,000 bytes. Values may use 2,400,000 bytes; values and transit together may use
// 2,800,000. Messages that can wait leave 100,000 of these free.
class MemoryBudgetTest : public testing::Test {
 protected:
  const std::shared_ptr<MemoryBudget> budget_ = MemoryBudget::Create(3'200'000);
  MemoryAccount& hosted_ = *budget_->hosted();
  MemoryAccount& transit_ = *budget_->transit();
  MemoryAccount& essential_ = *budget_->essential();
};

TEST_F(MemoryBudgetTest, ValuesLeaveTransitItsShare) {
  const MemoryCharge values = *hosted_.Charge(2'400'000);
  EXPECT_EQ(hosted_.Charge(1).status().code(), absl::StatusCode::kResourceExhausted);
  const MemoryCharge message = *transit_.Charge(300'000);
  EXPECT_EQ(hosted_.used_bytes(), 2'400'000u);
  EXPECT_EQ(transit_.used_bytes(), 300'000u);
}

TEST_F(MemoryBudgetTest, TransitUsesWhatValuesLeave) {
  MemoryCharge message = *transit_.Charge(2'700'000);
  EXPECT_FALSE(transit_.Charge(1).ok());
  EXPECT_FALSE(hosted_.Charge(100'001).ok());
  EXPECT_EQ(hosted_.used_bytes(), 0u);
  message.reset();
  EXPECT_TRUE(hosted_.Charge(2'400'000).ok());
}

TEST_F(MemoryBudgetTest, SmallMessagesAreTakenWhileLargeOnesFindNoRoom) {
  const MemoryCharge large = *transit_.Charge(2'700'000);
  const MemoryCharge small = *essential_.Charge(100'000);
  EXPECT_FALSE(essential_.Charge(1).ok());
  EXPECT_EQ(transit_.used_bytes(), 2'800'000u);
  EXPECT_EQ(essential_.used_bytes(), 2'800'000u);
}

TEST_F(MemoryBudgetTest, ABlockThatBecomesAValueIsCountedOnce) {
  std::shared_ptr<Block> block = *transit_.Allocate(1'000'000);
  EXPECT_TRUE(hosted_.TakeOver({block.get(), block.get()}).ok());
  EXPECT_TRUE(hosted_.TakeOver({block.get()}).ok());
  EXPECT_EQ(hosted_.used_bytes(), 1'000'000u);
  EXPECT_EQ(transit_.used_bytes(), 0u);
  EXPECT_TRUE(transit_.TakeOver({block.get()}).ok());
  EXPECT_EQ(hosted_.used_bytes(), 0u);
  EXPECT_TRUE(hosted_.TakeOver({block.get()}).ok());
  EXPECT_TRUE(transit_.Counts(block.get()));
  block.reset();
  EXPECT_EQ(hosted_.used_bytes(), 0u);
  EXPECT_EQ(transit_.used_bytes(), 0u);
  EXPECT_TRUE(hosted_.TakeOver({this}).ok());
  EXPECT_FALSE(hosted_.Counts(this));
  EXPECT_EQ(hosted_.used_bytes(), 0u);
}

TEST_F(MemoryBudgetTest, ABlockThatFitsNotAmongTheValuesStaysInTransit) {
  const MemoryCharge values = *hosted_.Charge(2'000'000);
  const std::shared_ptr<Block> fits = *transit_.Allocate(100'000);
  const std::shared_ptr<Block> block = *transit_.Allocate(500'000);
  EXPECT_EQ(hosted_.TakeOver({fits.get(), block.get()}).code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(hosted_.used_bytes(), 2'000'000u);
  EXPECT_EQ(transit_.used_bytes(), 600'000u) << "all of them or none";
}

TEST_F(MemoryBudgetTest, AThreadMayGiveBackWhatAnotherHasNotMovedYet) {
  const SmallChargesId id = budget_->transit()->small_charges();
  ASSERT_TRUE(ChargeSmallPiece(id, kSmallChargeStep - 1).ok());
  std::thread([&] { CreditSmallPiece(id, kSmallChargeStep - 1); }).join();
  EXPECT_EQ(budget_->transit()->used_bytes(), 0u);
  EXPECT_TRUE(budget_->transit()->Charge(1).ok());
  EXPECT_TRUE(budget_->hosted()->Charge(1).ok());
}

TEST_F(MemoryBudgetTest, TransitKnowsTheMostThatItCouldHaveBesideTheValues) {
  EXPECT_EQ(transit_.most_bytes(), transit_.limit_bytes());
  const MemoryCharge message = *transit_.Charge(500'000);
  const MemoryCharge values = *hosted_.Charge(1'000'000);
  EXPECT_EQ(transit_.most_bytes(), transit_.limit_bytes() - 1'000'000);
}

TEST_F(MemoryBudgetTest, RefusalsNameNeedBudgetAndUseOfBothAccounts) {
  const MemoryCharge values = *hosted_.Charge(1'500'000);
  const MemoryCharge message = *transit_.Charge(700'001);
  for (MemoryAccount* account : {&hosted_, &transit_}) {
    const std::string refused(account->Charge(999'999).status().message());
    for (const char* number : {"999999", "3200000", "1500000", "700001"})
      EXPECT_THAT(refused, HasSubstr(number));
  }
}

TEST(MemoryBudget, WithoutLimitItCountsAllTheSame) {
  const auto budget = MemoryBudget::Create(0);
  const auto message = *budget->transit()->Allocate(1'000'000);
  const MemoryCharge values = *budget->hosted()->Charge(size_t{1} << 50);
  EXPECT_EQ(budget->transit()->used_bytes(), 1'000'000u);
  EXPECT_EQ(budget->hosted()->used_bytes(), size_t{1} << 50);
  EXPECT_EQ(budget->transit()->limit_bytes(), 0u);
}

TEST(MemoryBudget, BlocksInSegmentsAreChargedLikeAllOthers) {
  constexpr size_t kBytes = size_t{1} << 20;
  const auto budget = MemoryBudget::Create(16 * kBytes, [](size_t cache_bytes) {
    SharedAllocatorOptions options;
    options.cache_bytes = cache_bytes;
    return NewSharedAllocator(options);
  });
  auto block = *budget->transit()->Allocate(kBytes);
  ASSERT_EQ(block->place().kind(), MemoryPlace::Kind::kSegment);
  EXPECT_EQ(block->data(), block->place().segment()->data());
  EXPECT_EQ(budget->transit()->used_bytes(), kBytes);
  EXPECT_TRUE(budget->hosted()->Counts(block.get()));
  const void* const storage = block.get();
  ASSERT_TRUE(budget->hosted()->TakeOver({&storage, 1}).ok());
  EXPECT_EQ(budget->hosted()->used_bytes(), kBytes);
  EXPECT_EQ(budget->transit()->used_bytes(), 0u);
  const uint64_t segment = block->place().segment()->id();
  block.reset();
  EXPECT_EQ(budget->hosted()->used_bytes(), 0u);
  // Freed segments are kept, for whichever account asks next, until nobody has asked for a while.
  EXPECT_EQ((*budget->transit()->Allocate(kBytes))->place().segment()->id(), segment);
  EXPECT_EQ((*budget->hosted()->Allocate(kBytes))->place().segment()->id(), segment);
  budget->ReleaseUnused();
  EXPECT_EQ((*budget->hosted()->Allocate(kBytes))->place().segment()->id(), segment);
  budget->ReleaseUnused();
  budget->ReleaseUnused();
  EXPECT_NE((*budget->hosted()->Allocate(kBytes))->place().segment()->id(), segment);
}

}  // namespace
}  // namespace psd
