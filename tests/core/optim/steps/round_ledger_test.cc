#include "core/optim/steps/round_ledger.h"

#include <map>
#include <optional>
#include <random>
#include <string>

#include "core/base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace psd::optim {
namespace {

using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

GlobalId Member(uint64_t n) {
  return {1, n};
}
GlobalId Step(uint64_t n) {
  return {2, n};
}
absl::Status Offer(RoundLedger& ledger, uint64_t member, uint64_t step, uint32_t seats) {
  return ledger.Offer(Member(member), Step(step), RoundKind::kHere, seats);
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
  EXPECT_EQ(ledger.Offer(Member(3), Step(4)).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(ledger.complete());
}

TEST(RoundLedgerTest, DDP_32_ARoundIsCompleteWhenItsStepsAreForAllSeats) {
  RoundLedger ledger(4);
  ASSERT_TRUE(Offer(ledger, 1, 1, 2).ok());
  EXPECT_FALSE(ledger.complete());
  ASSERT_TRUE(Offer(ledger, 2, 2, 1).ok());
  EXPECT_FALSE(ledger.complete()) << "one seat is not taken yet";
  ASSERT_TRUE(Offer(ledger, 3, 3, 1).ok());
  ASSERT_TRUE(ledger.complete());
  EXPECT_EQ(ledger.Take().size(), 3u);
  EXPECT_EQ(ledger.taken(), 4u);
  for (uint64_t n : {1, 2, 3}) EXPECT_TRUE(Offer(ledger, n, 3 + n, n == 1 ? 2 : 1).ok());
  EXPECT_TRUE(ledger.complete());
}

TEST(RoundLedgerTest, DDP_32_AStepForMoreSeatsThanAreLeftIsRefusedAndChangesNothing) {
  RoundLedger ledger(4);
  EXPECT_EQ(Offer(ledger, 1, 1, 0).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Offer(ledger, 1, 1, 5).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ledger.members(), 0u);
  ASSERT_TRUE(Offer(ledger, 1, 1, 3).ok());
  const absl::Status refused = Offer(ledger, 2, 2, 2);
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("for 2 of the 4 seats of this synchronous optimizer, of which other "
                        "trainers have 3 and 1 are left"));
  EXPECT_EQ(GetDetail(refused)->object, kSeats);
  EXPECT_EQ(ledger.taken(), 3u);
  ASSERT_TRUE(Offer(ledger, 2, 2, 1).ok());
  EXPECT_TRUE(ledger.complete());
}

TEST(RoundLedgerTest, DDP_32_AMemberMayStepForMoreOrFewerSeatsThanBefore) {
  RoundLedger ledger(4);
  ASSERT_TRUE(Offer(ledger, 1, 1, 3).ok());
  ASSERT_TRUE(Offer(ledger, 2, 2, 1).ok());
  ledger.Take();
  ASSERT_TRUE(Offer(ledger, 1, 3, 2).ok());
  ASSERT_TRUE(Offer(ledger, 2, 4, 1).ok());
  EXPECT_TRUE(ledger.complete()) << "the seat that member 1 gave back is empty";
  ledger.Take();
  ASSERT_TRUE(Offer(ledger, 2, 5, 2).ok());
  EXPECT_EQ(Offer(ledger, 1, 6, 3).code(), absl::StatusCode::kResourceExhausted);
  ASSERT_TRUE(Offer(ledger, 1, 6, 2).ok());
  EXPECT_TRUE(ledger.complete());
}

TEST(RoundLedgerTest, DDP_32_SeatsThatAMemberTakesBackAreNotThoseOfTrainersThatStillStart) {
  RoundLedger ledger(3);
  for (const uint32_t seats : {2, 1, 2}) {
    ASSERT_TRUE(Offer(ledger, 1, 1, seats).ok());
    ledger.Withdraw(Step(1));
  }
  ASSERT_TRUE(Offer(ledger, 1, 1, 2).ok());
  EXPECT_FALSE(ledger.complete()) << "the third trainer has not come yet";
  ASSERT_TRUE(Offer(ledger, 2, 2, 1).ok());
  EXPECT_TRUE(ledger.complete());
}

TEST(RoundLedgerTest, DDP_32_TheSeatsOfAMemberThatDiedAreEmptyAndMayBeTakenOver) {
  RoundLedger ledger(4);
  ASSERT_TRUE(Offer(ledger, 1, 1, 2).ok());
  ASSERT_TRUE(Offer(ledger, 2, 2, 2).ok());
  ledger.Take();
  ASSERT_TRUE(Offer(ledger, 1, 3, 2).ok());
  EXPECT_EQ(Offer(ledger, 3, 4, 1).code(), absl::StatusCode::kResourceExhausted)
      << "member 2 may still come";
  ledger.Leave(Member(2));
  EXPECT_TRUE(ledger.complete());
  ASSERT_TRUE(Offer(ledger, 3, 4, 1).ok());
  EXPECT_THAT(ledger.Take(), UnorderedElementsAre(Step(3), Step(4)));
  EXPECT_EQ(ledger.taken(), 3u);
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

TEST(RoundLedgerTest, DDP_32_SeatsStayTakenWhileATrainerThatHasJoinedIsLeft) {
  RoundLedger ledger(2);
  ledger.Join(Member(1));
  ledger.Join(Member(2));
  ASSERT_TRUE(Offer(ledger, 1, 1, 2).ok());  // for both
  ledger.Take();
  ledger.Leave(Member(1));
  ASSERT_TRUE(Offer(ledger, 2, 2, 1).ok());
  EXPECT_TRUE(ledger.complete()) << "the other seat is empty";
  ledger.Leave(Member(2));
  ASSERT_TRUE(Offer(ledger, 3, 3, 1).ok());
  EXPECT_FALSE(ledger.complete()) << "a new run waits for all";
}

// Trainers 1 and 2 are started again, one after the other, as 3 and 4.
TEST(RoundLedgerTest, DDP_32_TrainersThatAreStartedAgainWhileOthersDieWaitForEachOther) {
  RoundLedger ledger(2);
  for (uint64_t n : {1, 2}) ledger.Join(Member(n));
  for (uint64_t n : {1, 2}) ASSERT_TRUE(Offer(ledger, n, n, 1).ok());
  ledger.Take();
  ledger.Leave(Member(1));
  ledger.Join(Member(3));
  ledger.Leave(Member(2));
  ledger.Join(Member(4));
  ASSERT_TRUE(Offer(ledger, 3, 3, 1).ok());
  EXPECT_FALSE(ledger.complete()) << "trainer 4 has yet to step";
  ASSERT_TRUE(Offer(ledger, 4, 4, 1).ok());
  EXPECT_TRUE(ledger.complete());
}

TEST(RoundLedgerTest, DDP_32_ATrainerThatGivesItsSeatsBackHasJoinedStill) {
  RoundLedger ledger(2);
  for (uint64_t n : {1, 2}) ledger.Join(Member(n));
  ASSERT_TRUE(Offer(ledger, 1, 1, 2).ok());  // for both
  EXPECT_EQ(ledger.GiveSeats(Member(1)), Step(1));
  EXPECT_EQ(ledger.taken(), 0u);
  EXPECT_EQ(ledger.waiting(), 0u);
  ASSERT_TRUE(Offer(ledger, 2, 2, 2).ok()) << "trainer 2 steps for both";
  ledger.Take();
  ledger.Leave(Member(2));
  ASSERT_TRUE(Offer(ledger, 1, 3, 1).ok());
  EXPECT_TRUE(ledger.complete()) << "the seat of trainer 2 is empty";
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

// Members join, step for any number of seats, withdraw steps and leave at random. Members never
// have more seats than there are. Every round holds one step of each member, and when all seats are
// taken, a round is complete as soon as every member has stepped.
TEST(RoundLedgerTest, RandomHistoriesKeepTheInvariants) {
  std::mt19937 random(7);
  for (int run = 0; run < 200; ++run) {
    const uint32_t trainers = 1 + random() % 5;
    RoundLedger ledger(trainers);
    std::map<uint64_t, std::optional<uint64_t>> members;  // the model
    std::map<uint64_t, uint32_t> seats;
    const auto taken_without = [&](uint64_t member) {
      uint32_t taken = 0;
      for (const auto& [id, count] : seats) taken += id == member ? 0 : count;
      return taken;
    };
    uint64_t next_step = 0;
    for (int i = 0; i < 200; ++i) {
      const uint64_t member = random() % 7;
      auto known = members.find(member);
      switch (random() % 6) {
        case 0:
          ledger.Leave(Member(member));
          members.erase(member);
          seats.erase(member);
          break;
        case 1:
          if (known == members.end() || !known->second.has_value()) break;
          EXPECT_TRUE(ledger.Withdraw(Step(*known->second)));
          known->second.reset();
          break;
        default: {
          const uint32_t wanted = 1 + random() % 2;
          const bool expected = wanted + taken_without(member) <= trainers &&
                                (known == members.end() || !known->second.has_value());
          const uint64_t step = ++next_step;
          EXPECT_EQ(Offer(ledger, member, step, wanted).ok(), expected);
          if (!expected) break;
          members[member] = step;
          seats[member] = wanted;
        }
      }
      EXPECT_EQ(ledger.members(), members.size());
      EXPECT_EQ(ledger.taken(), taken_without(/*member=*/99));
      if (ledger.taken() == trainers) {
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
