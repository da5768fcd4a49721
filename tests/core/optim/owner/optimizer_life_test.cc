#include "core/optim/owner/optimizer_life.h"

#include <algorithm>
#include <string>
#include <utility>
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

// The reports of the owners a and b, which both have their parts.
std::vector<PartReport> Whole(uint64_t steps) {
  return {{{"a", 11}, true, LifeOf(kLife), steps}, {{"b", 22}, true, LifeOf(kLife), steps}};
}

using Kind = LifeVerdict::Kind;

LifeVerdict Judge(const std::vector<PartReport>& reports) {
  return JudgeLife("main", reports);
}

void ExpectRefused(const absl::Status& status, const std::string& owner, const std::string& problem,
                   const std::string& remedy) {
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(owner + " " + problem));
  ASSERT_TRUE(GetDetail(status).has_value());
  EXPECT_EQ(GetDetail(status)->worker, owner);
  EXPECT_THAT(GetDetail(status)->remedy, HasSubstr(remedy));
}

// Checks that both checks give an error that names the owner and the remedy.
void ExpectHalf(const std::vector<PartReport>& reports, const std::string& owner,
                const std::string& problem) {
  EXPECT_EQ(Judge(reports).kind, Kind::kLost);
  for (const absl::Status& status : {CheckWhole("main", reports), Judge(reports).error})
    ExpectRefused(status, owner, problem, "");
}

// Owners that give the next of these answers each time they are asked, and the last one again and
// again.
class Looks {
 public:
  explicit Looks(std::vector<std::vector<PartReport>> answers) : answers_(std::move(answers)) {}
  absl::StatusOr<LifeLook> Look() {
    return LookAtLife("main", [this]() -> absl::StatusOr<std::vector<PartReport>> {
      return answers_[std::min(asked_++, answers_.size() - 1)];
    });
  }
  size_t asked() const { return asked_; }

 private:
  const std::vector<std::vector<PartReport>> answers_;
  size_t asked_ = 0;
};

TEST(OptimizerLife, AWholeOneIsJoined) {
  EXPECT_TRUE(CheckWhole("main", Whole(3)).ok());
  EXPECT_EQ(Judge(Whole(3)).kind, Kind::kJoin);
  EXPECT_EQ(Judge(Whole(3)).life, kLife);
}

TEST(OptimizerLife, TheFirstTrainerJoinsNone) {
  const std::vector<PartReport> none = {{{"a", 11}, false, {}, 0}, {{"b", 22}, false, {}, 0}};
  EXPECT_EQ(Judge(none).kind, Kind::kJoin);
  EXPECT_TRUE(Judge(none).life.IsNone());
}

TEST(OptimizerLife, APartThatIsMissingIsBeingCreatedUntilTheFirstStep) {
  std::vector<PartReport> reports = Whole(0);
  reports[1] = {{"b", 22}, false, {}, 0};
  EXPECT_EQ(Judge(reports).life, kLife);
  // A save would hold only a part of the optimizer.
  ExpectRefused(CheckWhole("main", reports), "b", "has no part of it", "create");
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
  reports[1].life = {kOther, {{"a", 10}, {"b", 21}}};
  reports[0].life.owners[1].incarnation = 21;
  EXPECT_EQ(Judge(reports).kind, Kind::kLost);
  reports[1].life.owners = {{"a", 11}, {"b", 22}};
  reports[0].life.owners[1].incarnation = 22;
  ExpectRefused(CheckWhole("main", reports), "b", "has a part of 5 steps, of another life", "");
}

// The loaded parts have their life, and the part that stays has not joined it yet.
TEST(OptimizerLife, ALoadThatStoppedAtItsEndIsNotLostAndNotBegunAfresh) {
  std::vector<PartReport> reports = Whole(5);
  reports[0].life = {kOther, {{"a", 11}, {"b", 21}}};  // b was another process then
  EXPECT_EQ(Judge(reports).kind, Kind::kLoading);
  ExpectRefused(Judge(reports).error, "b", "has a part of 5 steps that does not share its life",
                "--only-missing");
  reports[1].steps = 0;  // not loaded: a fresh start that was stopped, which may be begun again
  EXPECT_EQ(Judge(reports).kind, Kind::kLost);
  reports[1].hosted = false;  // it was dropped, as the remedy says
  EXPECT_EQ(Judge(reports).kind, Kind::kLost);
}

TEST(OptimizerLife, AnUnfinishedLoadIsNoWhole) {
  std::vector<PartReport> reports = Whole(5);
  reports[1].life = {kOther, {}, LifeStage::kLoading};
  for (const bool hosted : {true, false}) {
    reports[0].hosted = hosted;  // even if another part is missing
    EXPECT_EQ(Judge(reports).kind, Kind::kLoading);
    for (const absl::Status& status : {CheckWhole("main", reports), Judge(reports).error})
      ExpectRefused(status, "b", "has a part whose load has not finished", "load again");
  }
}

TEST(OptimizerLife, AnOwnerThatWasNotAskedIsNamed) {
  std::vector<PartReport> reports = Whole(5);
  reports.pop_back();
  ExpectRefused(CheckWhole("main", reports), "b", "is not among the owners", "attach it");
  EXPECT_EQ(Judge(reports).kind, Kind::kOtherOwners);
}

TEST(OptimizerLife, OtherOwnersAreRefused) {
  std::vector<PartReport> reports = Whole(5);
  reports.push_back({{"c", 33}, false, {}, 0});
  EXPECT_EQ(Judge(reports).kind, Kind::kOtherOwners);
  const absl::Status refused = Judge(reports).error;
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("a, b, and these are on a, b, c"));
}

// In the first look, the second owner answers before another trainer creates and steps the
// optimizer, and the first owner answers afterwards.
TEST(OptimizerLife, WhatAnotherTrainerCreatesWhileItIsLookedAtIsNotLost) {
  std::vector<PartReport> torn = Whole(1);
  torn[1] = {{"b", 22}, false, {}, 0};
  ASSERT_EQ(Judge(torn).kind, Kind::kLost);
  Looks looks({torn, Whole(2)});
  const auto look = looks.Look();
  ASSERT_TRUE(look.ok()) << look.status();
  EXPECT_EQ(look->verdict.kind, Kind::kJoin);
  EXPECT_EQ(look->verdict.life, kLife);
  EXPECT_EQ(look->reports[1].steps, 2u);
}

TEST(OptimizerLife, WhatTwoLooksMissIsLost) {
  std::vector<PartReport> lost = Whole(1), stepped = Whole(7);
  lost[1] = stepped[1] = {{"b", 33}, false, {}, 0};
  Looks looks({lost, stepped});
  const auto look = looks.Look();
  ASSERT_TRUE(look.ok()) << look.status();
  EXPECT_EQ(look->verdict.kind, Kind::kLost) << "whatever steps are taken meanwhile";
  EXPECT_EQ(looks.asked(), 2u);
}

TEST(OptimizerLife, PartsThatNeverRestAreNotJudged) {
  std::vector<std::vector<PartReport>> answers;
  for (uint64_t i = 0; i < 100; ++i) {
    answers.push_back(Whole(1));
    answers[i][0].life = {{8, i}, {{"a", 11}, {"b", 21}}};
  }
  Looks looks(answers);
  EXPECT_EQ(looks.Look().status().code(), absl::StatusCode::kUnavailable);
  EXPECT_LT(looks.asked(), 20u);
}

TEST(OptimizerLife, NoStepIsForALifeThatIsLoadingOrHasEnded) {
  for (const LifeStage stage : {LifeStage::kLoading, LifeStage::kEnded}) {
    const OptimizerLife now{kLife, {}, stage};
    for (const GlobalId step : {kLife, GlobalId{}})
      EXPECT_EQ(CheckLife(step, now).code(), absl::StatusCode::kFailedPrecondition);
  }
}

TEST(OptimizerLife, ALoadChangesOnlyPartsThatNoOtherLoadHasTakenOver) {
  EXPECT_TRUE(CheckLoad(kLife, {kLife, {}, LifeStage::kLoading}).ok());
  for (const OptimizerLife& now : {OptimizerLife{kOther, {}, LifeStage::kLoading}, LifeOf(kOther),
                                   OptimizerLife{kLife, {}, LifeStage::kEnded}}) {
    EXPECT_EQ(CheckLoad(kLife, now).code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_TRUE(CheckLoad({}, now).ok());
  }
}

TEST(OptimizerLife, StepsBelongToTheirLife) {
  EXPECT_TRUE(CheckLife(kLife, LifeOf(kLife)).ok());
  EXPECT_TRUE(CheckLife({}, LifeOf(kLife)).ok()) << "one that is not said";
  EXPECT_EQ(CheckLife(kOther, LifeOf(kLife)).code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace psd::optim
