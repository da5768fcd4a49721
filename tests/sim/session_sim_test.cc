// The session rules under 100,000 random histories. A failure prints its seed. This option replays
// only that seed:
//   --test_env=PSD_SIM_SEED=<seed>

#include <cstdlib>
#include <string>

#include "gtest/gtest.h"
#include "tests/sim/session_world.h"

namespace psd::rpc::sim {
namespace {

constexpr uint64_t kSeedsPerTest = 25'000;

void Add(const World::Counts& from, World::Counts& to) {
  to.calls_refused += from.calls_refused;
  to.answers_refused += from.answers_refused;
  to.answers_without_room += from.answers_without_room;
  to.answers_not_kept += from.answers_not_kept;
}

void ExpectEveryProbe(const SessionProbes& p, const World::Counts& counts) {
  EXPECT_GT(p.resumed, 0u);
  EXPECT_GT(p.session_ended, 0u);
  EXPECT_GT(p.callee_restarted, 0u);
  EXPECT_GT(p.replayed, 0u);
  EXPECT_GT(p.joined_running, 0u);
  EXPECT_GT(p.stale_dropped, 0u);
  EXPECT_GT(p.fenced_request, 0u);
  EXPECT_GT(p.silence_noticed, 0u);
  EXPECT_GT(p.lease_ended, 0u);
  EXPECT_GT(p.stall_noticed, 0u);
  EXPECT_GT(p.takeover, 0u);
  EXPECT_GT(p.name_refused, 0u);
  EXPECT_GT(p.stale_hello, 0u);
  EXPECT_GT(p.refused_dial, 0u);
  EXPECT_GT(p.dialled_both, 0u);
  EXPECT_GT(p.goodbye, 0u);
  EXPECT_GT(p.read_refused, 0u);
  EXPECT_GT(counts.calls_refused, p.read_refused) << "for lack of memory";
  EXPECT_GT(counts.answers_refused, 0u);
  EXPECT_GT(counts.answers_without_room, 0u);
  EXPECT_GT(counts.answers_not_kept, 0u);
}

void RunSeeds(uint64_t first) {
  if (const char* seed = std::getenv("PSD_SIM_SEED")) {
    World world(std::strtoull(seed, nullptr, 10));
    EXPECT_EQ(world.Run(), "") << "seed " << seed;
    return;
  }
  SessionProbes probes;
  World::Counts counts;
  for (uint64_t seed = first; seed < first + kSeedsPerTest; ++seed) {
    World world(seed);
    std::string broken = world.Run();
    ASSERT_EQ(broken, "") << "replay with --test_env=PSD_SIM_SEED=" << seed;
    AddProbes(world.probes(), probes);
    Add(world.counts(), counts);
  }
  ExpectEveryProbe(probes, counts);
}

TEST(SessionSim, RPC_61_NothingIsLostOrDoneTwiceInAThousandHistories) {
  for (uint64_t seed = 0; seed < 1000; ++seed)
    ASSERT_EQ(World(seed).Run(), "") << "replay with --test_env=PSD_SIM_SEED=" << seed;
}

// Otherwise a member's new session would end with the late notice about its old one.
TEST(SessionSim, NoticesWithoutTheirEpochAreFound) {
  Rules rules;
  rules.notices_carry_epochs = false;
  std::string broken;
  for (uint64_t seed = 0; seed < kSeedsPerTest && broken.empty(); ++seed)
    broken = World(seed, rules).Run();
  EXPECT_NE(broken, "");
}

// There are four tests, so that they can run in shards.
TEST(SessionSim, Histories0) {
  RunSeeds(0 * kSeedsPerTest);
}
TEST(SessionSim, Histories1) {
  RunSeeds(1 * kSeedsPerTest);
}
TEST(SessionSim, Histories2) {
  RunSeeds(2 * kSeedsPerTest);
}
TEST(SessionSim, Histories3) {
  RunSeeds(3 * kSeedsPerTest);
}

}  // namespace
}  // namespace psd::rpc::sim
