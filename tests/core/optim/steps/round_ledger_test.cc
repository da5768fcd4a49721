#include "core/optim/steps/round_ledger.h"

#include <map>
#include <optional>
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace psd::optim {
namespace {

using ::testing::UnorderedElementsAre;

GlobalId Member(uint64_t n) {
  return {1, n};
}
GlobalId Step(uint64_t n) {
  return {2, n};
}

TEST(RoundLedgerTest, ARoundWaitsForAllDeclaredTrainers) {
  RoundLedger ledger(3);
  ASSERT_TRUE(ledger.Offer(Member(1), Step(1)).ok());
  ASSERT_TRUE(ledger.Offer(Member(2), Step(2)).ok());
  EXPECT_FALSE(ledger.complete());
  ASSERT_TRUE(ledger.Offer(Member(3), Step(3)).ok());
  ASSERT_TRUE(ledger.complete());
  EXPECT_THAT(ledger.Take(), UnorderedElementsAre(Step(1), Step(2), Step(3)));
  EXPECT_FALSE(ledger.complete());
  EXPECT_EQ(ledger.members(), 3u);
  EXPECT_EQ(ledger.waiting(), 0u);
}

TEST(RoundLedgerTest, OneStepOfEachMemberAndNoMoreMembersThanSeats) {
  RoundLedger ledger(2);
  ASSERT_TRUE(ledger.Offer(Member(1), Step(1)).ok());
  EXPECT_EQ(ledger.Offer(Member(1), Step(2)).code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(ledger.Offer(Member(2), Step(3)).ok());
  EXPECT_EQ(ledger.Offer(Member(3), Step(4)).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(ledger.complete());
}

TEST(RoundLedgerTest, WhoLeavesIsNotWaitedForAndItsStepIsOut) {
  RoundLedger ledger(3);
  for (uint64_t n : {1, 2, 3}) ASSERT_TRUE(ledger.Offer(Member(n), Step(n)).ok());
  ledger.Take();
  ASSERT_TRUE(ledger.Offer(Member(1), Step(4)).ok());
  ASSERT_TRUE(ledger.Offer(Member(2), Step(5)).ok());
  EXPECT_EQ(ledger.Leave(Member(3)), std::nullopt);
  EXPECT_TRUE(ledger.complete());
  EXPECT_EQ(ledger.Leave(Member(2)), Step(5));
  EXPECT_THAT(ledger.Take(), UnorderedElementsAre(Step(4)));
  // A seat that is empty may be taken again.
  ASSERT_TRUE(ledger.Offer(Member(1), Step(6)).ok());
  EXPECT_TRUE(ledger.complete());
  ASSERT_TRUE(ledger.Offer(Member(4), Step(7)).ok());
  EXPECT_EQ(ledger.Take().size(), 2u);
}

TEST(RoundLedgerTest, WithdrawnStepsAreWaitedForAgain) {
  RoundLedger ledger(1);
  ASSERT_TRUE(ledger.Offer(Member(1), Step(1)).ok());
  EXPECT_TRUE(ledger.Withdraw(Step(1)));
  EXPECT_FALSE(ledger.Withdraw(Step(1)));
  EXPECT_FALSE(ledger.complete());
  ASSERT_TRUE(ledger.Offer(Member(1), Step(2)).ok());
  EXPECT_TRUE(ledger.complete());
}

TEST(RoundLedgerTest, WhenAllHaveLeftANewRunWaitsForAllAgain) {
  RoundLedger ledger(2);
  ASSERT_TRUE(ledger.Offer(Member(1), Step(1)).ok());
  ASSERT_TRUE(ledger.Offer(Member(2), Step(2)).ok());
  ledger.Take();
  ledger.Leave(Member(1));
  ledger.Leave(Member(2));
  EXPECT_FALSE(ledger.complete());
  ASSERT_TRUE(ledger.Offer(Member(3), Step(3)).ok());
  EXPECT_FALSE(ledger.complete());
}

TEST(RoundLedgerTest, TheKindOfRoundMayChangeWhenAMemberIsGone) {
  RoundLedger ledger(2);
  ASSERT_TRUE(ledger.Offer(Member(1), Step(1), RoundKind::kNamed).ok());
  ASSERT_TRUE(ledger.Offer(Member(2), Step(2), RoundKind::kNamed).ok());
  ledger.Take();
  ledger.Leave(Member(2));
  ASSERT_TRUE(ledger.Offer(Member(1), Step(3), RoundKind::kMeasured).ok());
  EXPECT_TRUE(ledger.complete());
  EXPECT_EQ(ledger.kind(), RoundKind::kMeasured);
}

TEST(RoundLedgerTest, MembersThatWouldWaitForEachOtherAreToldSo) {
  for (const RoundKind first : {RoundKind::kMeasured, RoundKind::kNamed}) {
    const RoundKind second =
        first == RoundKind::kMeasured ? RoundKind::kNamed : RoundKind::kMeasured;
    RoundLedger ledger(2);
    ASSERT_TRUE(ledger.Offer(Member(1), Step(1), first).ok());
    EXPECT_EQ(ledger.Offer(Member(2), Step(2), second).code(),
              absl::StatusCode::kFailedPrecondition);
    EXPECT_TRUE(ledger.Withdraw(Step(1)));
    EXPECT_TRUE(ledger.Offer(Member(2), Step(2), second).ok());
  }
}

// Members join, step, withdraw steps and leave at random. Every round holds one step of each
// member, and once all seats have been taken, a round is complete as soon as every member has
// stepped.
TEST(RoundLedgerTest, RandomHistoriesKeepTheInvariants) {
  std::mt19937 random(7);
  for (int run = 0; run < 200; ++run) {
    const uint32_t trainers = 1 + random() % 5;
    RoundLedger ledger(trainers);
    std::map<uint64_t, std::optional<uint64_t>> members;  // the model
    uint64_t next_step = 0;
    for (int i = 0; i < 200; ++i) {
      const uint64_t member = random() % 7;
      auto known = members.find(member);
      switch (random() % 6) {
        case 0:
          ledger.Leave(Member(member));
          members.erase(member);
          break;
        case 1:
          if (known == members.end() || !known->second.has_value()) break;
          EXPECT_TRUE(ledger.Withdraw(Step(*known->second)));
          known->second.reset();
          break;
        default: {
          const bool expected =
              known == members.end() ? members.size() < trainers : !known->second.has_value();
          const uint64_t step = ++next_step;
          EXPECT_EQ(ledger.Offer(Member(member), Step(step)).ok(), expected);
          if (expected) members[member] = step;
        }
      }
      EXPECT_EQ(ledger.members(), members.size());
      if (members.size() == trainers) {
        bool all = true;
        for (const auto& [id, step] : members) all &= step.has_value();
        EXPECT_EQ(ledger.complete(), all);
      }
      if (!ledger.complete()) continue;
      EXPECT_EQ(ledger.Take().size(), members.size());
      for (auto& [id, step] : members) step.reset();
    }
  }
}

}  // namespace
}  // namespace psd::optim
