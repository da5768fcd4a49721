// Compares the functional optimizers with values computed by PyTorch (tests/golden/optim).

#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "tests/core/optim/dense/golden_cases.h"

namespace psd::optim {
namespace {

std::vector<GoldenCase> Cases() {
  std::ifstream file("tests/golden/optim/golden.txt");
  return ReadGoldenCases(file);
}

// Replays all cases of one type, and returns their number.
int ReplayAll(const std::string& type) {
  int count = 0;
  for (const GoldenCase& golden : Cases()) {
    if (golden.spec.type != type) continue;
    const absl::Status replayed = Replay(golden);
    EXPECT_TRUE(replayed.ok()) << replayed;
    ++count;
  }
  return count;
}

TEST(GoldenOptim, ManyCombinationsOfEveryType) {
  std::map<std::string, int> types;
  size_t without_gradient = 0;
  const std::vector<GoldenCase> cases = Cases();
  for (const GoldenCase& golden : cases) {
    ++types[golden.spec.type];
    for (const GoldenStep& step : golden.steps) without_gradient += step.gradient.empty() ? 1 : 0;
  }
  EXPECT_GE(cases.size(), 200u);
  EXPECT_EQ(types.size(), 8u);
  EXPECT_GE(without_gradient, 50u);
}

TEST(GoldenOptim, OPT_25_OPT_26_OPT_27_OPT_28_OPT_44_Sgd) {
  EXPECT_GE(ReplayAll("sgd"), 20);
}
TEST(GoldenOptim, OPT_28_OPT_29_OPT_30_OPT_44_Adagrad) {
  EXPECT_GE(ReplayAll("adagrad"), 20);
}
TEST(GoldenOptim, OPT_28_OPT_31_OPT_32_OPT_44_Adam) {
  EXPECT_GE(ReplayAll("adam"), 20);
}
TEST(GoldenOptim, OPT_28_OPT_32_OPT_33_OPT_44_AdamW) {
  EXPECT_GE(ReplayAll("adamw"), 20);
}
TEST(GoldenOptim, OPT_24_OPT_28_OPT_34_OPT_44_Adamax) {
  EXPECT_GE(ReplayAll("adamax"), 20);
}
TEST(GoldenOptim, OPT_28_OPT_35_OPT_44_Adadelta) {
  EXPECT_GE(ReplayAll("adadelta"), 20);
}
TEST(GoldenOptim, OPT_28_OPT_36_OPT_44_RmsProp) {
  EXPECT_GE(ReplayAll("rmsprop"), 20);
}
TEST(GoldenOptim, OPT_28_OPT_37_OPT_44_Rprop) {
  EXPECT_GE(ReplayAll("rprop"), 20);
}

}  // namespace
}  // namespace psd::optim
