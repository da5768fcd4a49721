// Runs the ledgers through 100,000 random histories: no value is freed early, nothing is left in
// the end, and no count is negative. A failure prints its seed and a short history that fails. This
// option replays only that seed:
//   --test_env=PSD_SIM_SEED=<seed>

#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/core/rref/ledger_history.h"
#include "tests/core/rref/ledger_world.h"

namespace psd::rref::sim {
namespace {

constexpr uint64_t kSeedsPerTest = 25'000;
constexpr size_t kSteps = 80;

int WorkersOf(uint64_t seed) {
  return 2 + static_cast<int>(seed % 5);
}

// Describes the shortest broken part of `history` and its error.
std::string Explain(int workers, const History& history, Mistake mistake = Mistake::kNone) {
  const History shortest = Shrink(history, [&](const History& part) {
    return !LedgerWorld(workers, mistake).Run(part).empty();
  });
  return absl::StrCat(workers, " workers, these ", shortest.size(), " steps: ", ToString(shortest),
                      ": ", LedgerWorld(workers, mistake).Run(shortest));
}

void ExpectEveryProbe(const Probes& probes) {
  EXPECT_GT(probes.sessions_ended, 0u);
  EXPECT_GT(probes.restarts, 0u);
  EXPECT_GT(probes.given_up, 0u);
  EXPECT_GT(probes.repeated, 0u);
  EXPECT_GT(probes.answers_taken_back, 0u);
  EXPECT_GT(probes.forks_while_made, 0u);
  EXPECT_GT(probes.made_for_nobody, 0u);
  EXPECT_GT(probes.refused_forks, 0u);
  EXPECT_GT(probes.loans_ended_by_death, 0u);
}

void Accumulate(const Probes& from, Probes& to) {
  const auto* source = reinterpret_cast<const uint64_t*>(&from);
  auto* target = reinterpret_cast<uint64_t*>(&to);
  for (size_t i = 0; i < sizeof(from) / sizeof(uint64_t); ++i) target[i] += source[i];
}

void RunSeeds(uint64_t first) {
  uint64_t last = first + kSeedsPerTest;
  const char* only = std::getenv("PSD_SIM_SEED");
  if (only != nullptr) {
    first = std::strtoull(only, nullptr, 10);
    last = first + 1;
  }
  Probes probes;
  for (uint64_t seed = first; seed < last; ++seed) {
    const History history = RandomHistory(seed, kSteps);
    LedgerWorld world(WorkersOf(seed));
    const std::string wrong = world.Run(history);
    ASSERT_EQ(wrong, "") << "replay with --test_env=PSD_SIM_SEED=" << seed << "; "
                         << Explain(WorkersOf(seed), history);
    Accumulate(world.probes(), probes);
  }
  if (only == nullptr) ExpectEveryProbe(probes);
}

// The seeds are divided into four tests, which can run in shards.
TEST(LedgerSimulation, RREF_18_RREF_19_RREF_31_RREF_33_Histories0) {
  RunSeeds(0 * kSeedsPerTest);
}
TEST(LedgerSimulation, RREF_18_RREF_19_RREF_31_RREF_33_Histories1) {
  RunSeeds(1 * kSeedsPerTest);
}
TEST(LedgerSimulation, RREF_18_RREF_19_RREF_31_RREF_33_Histories2) {
  RunSeeds(2 * kSeedsPerTest);
}
TEST(LedgerSimulation, RREF_18_RREF_19_RREF_31_RREF_33_Histories3) {
  RunSeeds(3 * kSeedsPerTest);
}

TEST(LedgerSimulation, LongHistories) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const History history = RandomHistory(seed, 3'000);
    ASSERT_EQ(LedgerWorld(6).Run(history), "") << "seed " << seed << "; " << Explain(6, history);
  }
}

// A mistake in the protocol breaks one of a few thousand histories. It is the same history in every
// run, and a few of its steps are enough to break it.
TEST(LedgerSimulation, AMistakeIsSeenReplayedAndShrunk) {
  for (Mistake mistake : {Mistake::kLentReferenceIsNotKept, Mistake::kLoansOutliveTheirSession,
                          Mistake::kUncountedReferenceIsPassedOn}) {
    uint64_t seed = 0;
    std::string wrong;
    History history;
    while (wrong.empty() && seed < 5'000) {
      history = RandomHistory(++seed, kSteps);
      wrong = LedgerWorld(WorkersOf(seed), mistake).Run(history);
    }
    ASSERT_NE(wrong, "");
    EXPECT_EQ(LedgerWorld(WorkersOf(seed), mistake).Run(RandomHistory(seed, kSteps)), wrong);
    const History shortest = Shrink(history, [&](const History& part) {
      return !LedgerWorld(WorkersOf(seed), mistake).Run(part).empty();
    });
    EXPECT_LE(shortest.size(), 12u) << Explain(WorkersOf(seed), history, mistake);
    EXPECT_NE(LedgerWorld(WorkersOf(seed), mistake).Run(shortest), "");
    EXPECT_EQ(LedgerWorld(WorkersOf(seed)).Run(shortest), "") << "right without the mistake";
  }
}

TEST(LedgerHistory, ShrinksToTheStepsThatMatter) {
  History history = RandomHistory(1, 100);
  for (Step& step : history) step.action %= 10;
  const auto broken = [](const History& part) {
    bool three = false;
    for (const Step& step : part) {
      if (step.action == 3) three = true;
      if (step.action == 7 && three) return true;
    }
    return false;
  };
  ASSERT_TRUE(broken(history));
  const History shortest = Shrink(history, broken);
  ASSERT_EQ(shortest.size(), 2u);
  EXPECT_EQ(shortest[0].action, 3u);
  EXPECT_EQ(shortest[1].action, 7u);
  EXPECT_EQ(ToString({{1, 2, 3, 4}, {5, 6, 7, 8}}), "{1, 2, 3, 4}, {5, 6, 7, 8}");
}

}  // namespace
}  // namespace psd::rref::sim
