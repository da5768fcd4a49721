#include "core/optim/steps/pace_ledger.h"

#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace psd::optim {
namespace {

GlobalId Member(uint64_t n) {
  return {1, n};
}
GlobalId Step(uint64_t n) {
  return {2, n};
}

// Runs steps until none may run, and returns them in order.
std::vector<GlobalId> RunAll(PaceLedger& ledger) {
  std::vector<GlobalId> ran;
  while (std::optional<GlobalId> step = ledger.Next()) {
    ran.push_back(*step);
    ledger.Finish(/*applied=*/true);
  }
  return ran;
}

TEST(PaceLedgerTest, ATrainerAloneNeverWaits) {
  PaceLedger ledger(0);
  for (uint64_t i = 1; i < 10; ++i) {
    ledger.Arrive(Member(1), Step(i));
    EXPECT_EQ(RunAll(ledger).size(), 1u);
  }
}

TEST(PaceLedgerTest, TheFastWaitForTheSlow) {
  PaceLedger ledger(2);
  ledger.Arrive(Member(1), Step(1));
  ledger.Arrive(Member(2), Step(2));
  EXPECT_EQ(RunAll(ledger).size(), 2u);  // the clock is 2; member 1 computes from version 1 or 2
  ledger.Arrive(Member(2), Step(3));
  EXPECT_EQ(RunAll(ledger).size(), 1u);  // the clock is 3
  ledger.Arrive(Member(2), Step(4));
  EXPECT_EQ(RunAll(ledger).size(), 0u);  // at clock 4 the gradient of member 1 would be 3 old
  EXPECT_EQ(ledger.waiting(), 1u);
  ledger.Arrive(Member(1), Step(5));
  EXPECT_EQ(RunAll(ledger), (std::vector<GlobalId>{Step(5), Step(4)}));
}

TEST(PaceLedgerTest, WhoLeavesIsNotWaitedFor) {
  PaceLedger ledger(1);
  for (uint64_t n : {1, 2}) ledger.Arrive(Member(n), Step(n));
  RunAll(ledger);
  ledger.Arrive(Member(2), Step(3));
  EXPECT_EQ(RunAll(ledger).size(), 0u);
  EXPECT_TRUE(ledger.Leave(Member(1)).empty());
  EXPECT_EQ(RunAll(ledger).size(), 1u);
  ledger.Arrive(Member(3), Step(4));
  EXPECT_EQ(ledger.Leave(Member(3)), std::vector<GlobalId>{Step(4)});
}

TEST(PaceLedgerTest, WithdrawnStepsDoNotRun) {
  PaceLedger ledger(5);
  ledger.Arrive(Member(1), Step(1));
  EXPECT_TRUE(ledger.Withdraw(Step(1)));
  EXPECT_FALSE(ledger.Withdraw(Step(1)));
  EXPECT_EQ(ledger.Next(), std::nullopt);
}

// Members compute for random times, and none of them hangs. With a bound of at least members - 1,
// no gradient is older than the bound, except for the first one of a member.
TEST(PaceLedgerTest, RandomTrainersStayWithinTheBound) {
  std::mt19937 random(11);
  for (int run = 0; run < 100; ++run) {
    const uint64_t members = 1 + random() % 5, bound = random() % 8;
    PaceLedger ledger(bound);
    std::vector<uint64_t> read(members, 0), steps(members, 0);  // `read`: clock at the last pull
    std::vector<bool> waits(members, false);
    std::map<GlobalId, uint64_t> member_of;
    uint64_t clock = 0, next_step = 0;
    for (int i = 0; i < 400; ++i) {
      const uint64_t m = random() % members;
      if (!waits[m]) {
        const GlobalId step = Step(++next_step);
        member_of[step] = m;
        waits[m] = true;
        ledger.Arrive(Member(m), step);
      }
      while (std::optional<GlobalId> step = ledger.Next()) {
        const uint64_t who = member_of.at(*step);
        const uint64_t old = clock - read[who];
        // Once every member has stepped, each is known and waited for.
        const bool settled = std::all_of(steps.begin(), steps.end(), [](uint64_t s) { return s; });
        if (settled && bound + 1 >= members && steps[who] > 1) {
          EXPECT_LE(old, bound);
        }
        ledger.Finish(/*applied=*/old <= bound);
        clock += old <= bound;
        read[who] = clock;
        ++steps[who];
        waits[who] = false;
      }
      const bool all_wait = std::all_of(waits.begin(), waits.end(), [](bool w) { return w; });
      EXPECT_FALSE(all_wait) << "everybody hangs";
    }
  }
}

}  // namespace
}  // namespace psd::optim
