#include "core/optim/owner/optimizer_life.h"

#include <string>
#include <vector>

#include "core/base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace psd::optim {
namespace {

using ::testing::HasSubstr;

constexpr GlobalId kLife{9, 1}, kOther{9, 2};

OptimizerLife LifeOf(GlobalId id) {
  return {id, {{"a", 11}, {"b", 22}}};
}

// Owners a and b with their parts.
std::vector<PartReport> Whole(uint64_t steps) {
  return {{{"a", 11}, true, LifeOf(kLife), steps}, {{"b", 22}, true, LifeOf(kLife), steps}};
}

// The error names the owner and the remedy, and both checks give it.
void ExpectHalf(const std::vector<PartReport>& reports, const std::string& owner,
                const std::string& problem) {
  for (const absl::Status& status :
       {CheckWhole("main", reports), LifeToJoin("main", reports).status()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(owner + " " + problem));
    ASSERT_TRUE(GetDetail(status).has_value());
    EXPECT_EQ(GetDetail(status)->worker, owner);
    EXPECT_FALSE(GetDetail(status)->remedy.empty());
  }
}

TEST(OptimizerLife, AWholeOneIsJoined) {
  EXPECT_TRUE(CheckWhole("main", Whole(3)).ok());
  EXPECT_EQ(*LifeToJoin("main", Whole(3)), kLife);
}

TEST(OptimizerLife, TheFirstTrainerJoinsNone) {
  const std::vector<PartReport> none = {{{"a", 11}, false, {}, 0}, {{"b", 22}, false, {}, 0}};
  EXPECT_TRUE(LifeToJoin("main", none)->IsNone());
}

TEST(OptimizerLife, APartThatIsMissingIsBeingCreatedUntilTheFirstStep) {
  std::vector<PartReport> reports = Whole(0);
  reports[1] = {{"b", 22}, false, {}, 0};
  EXPECT_EQ(*LifeToJoin("main", reports), kLife);
  EXPECT_FALSE(CheckWhole("main", reports).ok()) << "a save would hold a part only";
  reports[0].steps = 1;
  ExpectHalf(reports, "b", "has no part of it");
}

TEST(OptimizerLife, ARestartedOwnerIsNamed) {
  for (size_t gone : {0, 1}) {
    std::vector<PartReport> reports = Whole(0);
    reports[gone].owner.incarnation = 33;
    reports[gone].hosted = false;
    ExpectHalf(reports, reports[gone].owner.name, "was restarted");
  }
}

TEST(OptimizerLife, PartsOfTwoLivesDoNotFit) {
  std::vector<PartReport> reports = Whole(5);
  reports[1].life = LifeOf(kOther);
  ExpectHalf(reports, "b", "has a part of 5 steps, of another life");
}

TEST(OptimizerLife, AnUnfinishedLoadIsNoWhole) {
  std::vector<PartReport> reports = Whole(5);
  reports[1].life.owners.clear();
  reports[0].hosted = false;
  ExpectHalf(reports, "b", "has a part whose load has not finished");
}

TEST(OptimizerLife, AnOwnerThatWasNotAskedIsNamed) {
  std::vector<PartReport> reports = Whole(5);
  reports.pop_back();
  ExpectHalf(reports, "b", "is not among the owners");
}

TEST(OptimizerLife, OtherOwnersAreRefused) {
  std::vector<PartReport> reports = Whole(5);
  reports.push_back({{"c", 33}, false, {}, 0});
  const absl::Status refused = LifeToJoin("main", reports).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("a, b, and these are on a, b, c"));
}

TEST(OptimizerLife, StepsBelongToTheirLife) {
  EXPECT_TRUE(CheckLife(kLife, LifeOf(kLife)).ok());
  EXPECT_TRUE(CheckLife({}, LifeOf(kLife)).ok()) << "one that is not said";
  EXPECT_EQ(CheckLife(kOther, LifeOf(kLife)).code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace psd::optim
