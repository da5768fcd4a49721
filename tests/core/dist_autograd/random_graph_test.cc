// Compares distributed autograd with local autograd on random graphs, with random orders of
// delivery and lost messages. A failure prints its seed and its graph. This option runs only that
// seed:
//   --test_env=PSD_GRAPH_SEED=<seed>

#include <cstdint>
#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/core/dist_autograd/graph_run.h"
#include "tests/core/dist_autograd/graph_text.h"

namespace psd::dist_autograd {
namespace {

constexpr uint64_t kSeeds = 1'500;
constexpr double kTolerance = 1e-12;

// Calls `check` with every seed until one fails, or only with the seed that the environment gives.
template <typename Check>
void ForSeeds(const Check& check) {
  if (const char* seed = std::getenv("PSD_GRAPH_SEED")) {
    return check(std::strtoull(seed, nullptr, 10));
  }
  for (uint64_t seed = 1; seed <= kSeeds && !::testing::Test::HasFailure(); ++seed) check(seed);
}

std::string Replay(uint64_t seed, const Graph& graph) {
  return absl::StrCat("replay with --test_env=PSD_GRAPH_SEED=", seed, "\n", ToText(graph));
}

void ExpectGradients(const Graph& graph, const RunOptions& options) {
  auto expected = RunLocally(graph);
  ASSERT_TRUE(expected.ok()) << expected.status();
  for (auto& [name, numbers] : *expected) {
    for (double& number : numbers) number *= options.passes;
  }
  auto is = RunDistributed(graph, options);
  ASSERT_TRUE(is.ok()) << is.status();
  EXPECT_EQ(Difference(*is, *expected, kTolerance), "");
}

GraphOptions WorkersOf(uint64_t seed) {
  GraphOptions options;
  options.workers = 2 + static_cast<int>(seed % 3);
  return options;
}

TEST(RandomGraphTest, ExactModeEqualsLocalAutograd) {
  ForSeeds([](uint64_t seed) {
    const Graph graph = RandomGraph(seed, WorkersOf(seed));
    SCOPED_TRACE(Replay(seed, graph));
    RunOptions options;
    options.seed = seed;
    options.loss = seed % 2 == 0 ? 0.25 : 0;
    options.passes = 1 + static_cast<int>(seed % 4 == 0);
    ExpectGradients(graph, options);
  });
}

TEST(RandomGraphTest, WhereAllIsUsedFastModeEqualsExactMode) {
  ForSeeds([](uint64_t seed) {
    GraphOptions used = WorkersOf(seed);
    used.all_used = true;
    const Graph graph = RandomGraph(seed, used);
    SCOPED_TRACE(Replay(seed, graph));
    RunOptions options;
    options.seed = seed;
    options.loss = 0.25;
    ExpectGradients(graph, options);
    options.mode = BackwardMode::kFast;
    ExpectGradients(graph, options);
  });
}

}  // namespace
}  // namespace psd::dist_autograd
