#include "client/load_share.h"

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/model_parts.h"
#include "core/base/ids.h"
#include "core/checkpoint/checkpoint_index.h"
#include "core/checkpoint/placement.h"
#include "core/services/checkpoint/checkpoint_types.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace psd {
namespace {

using ::testing::HasSubstr;

constexpr GlobalId kSaved{9, 1}, kBegun{9, 2}, kOther{9, 3};
constexpr uint64_t kSteps = 3;

// The optimizer "main" steps w0 on owner0, whose incarnation is 10, and w1 on owner1, whose
// incarnation is 11. The save was made in the life kSaved.
class LoadShareTest : public ::testing::Test {
 protected:
  LoadShareTest() {
    checkpoint::SavedOptimizer& main = index_.optimizers.emplace_back();
    main.name = "main";
    placement_.optimizers.emplace_back();
    for (const std::string number : {"0", "1"}) {
      const std::string owner = "owner" + number, name = "w" + number;
      checkpoint::SavedValue& value = index_.values.emplace_back();
      value.owner = owner;
      value.name = name;
      value.version = 7;
      checkpoint::SavedState& state = main.parameters.emplace_back();
      state.owner = owner;
      state.parameter = name;
      main.parts.push_back({owner, kSaved.ToString(), kSteps});
      placement_.values.push_back(owner);
      placement_.optimizers[0].push_back(owner);
      services::OwnerContents& contents = contents_[owner];
      contents.incarnation = 10 + contents_.size() - 1;
      contents.values.push_back({{}, value});
      contents.optimizers.emplace_back().optimizer.name = "main";
      Set(owner, kSaved, 10, 11);
    }
  }
  // Sets the life of the part on `owner`. In this life owner0 had the incarnation `first`, and
  // owner1 had `second`.
  void Set(const std::string& owner, GlobalId life, Incarnation first, Incarnation second,
           uint64_t steps = kSteps) {
    services::HostedOptimizer& part = contents_[owner].optimizers[0];
    part.life = {life, {{"owner0", first}, {"owner1", second}}};
    part.optimizer.steps_accepted = steps;
  }
  absl::StatusOr<LoadShare> Missing(bool accept_skew = false) const {
    return MissingOf(index_, placement_, contents_, accept_skew);
  }

  checkpoint::CheckpointIndex index_;
  checkpoint::Placement placement_;
  ContentsByOwner contents_;
};

TEST_F(LoadShareTest, NothingOfAWholeOneIsMissing) {
  const auto share = Missing();
  ASSERT_TRUE(share.ok()) << share.status();
  EXPECT_FALSE(share->optimizers[0].loaded);
  EXPECT_EQ(share->values, (std::vector<bool>{false, false}));
}

TEST_F(LoadShareTest, APartThatStaysIsRememberedAsItWasFound) {
  contents_["owner1"].optimizers.clear();
  const auto share = Missing();
  ASSERT_TRUE(share.ok()) << share.status();
  EXPECT_TRUE(share->optimizers[0].loaded);
  ASSERT_EQ(share->optimizers[0].kept.size(), 1u);
  EXPECT_EQ(share->optimizers[0].kept.at("owner0").life, kSaved);
  EXPECT_EQ(share->optimizers[0].kept.at("owner0").steps, kSteps);
  EXPECT_EQ(share->values, (std::vector<bool>{false, true}));
}

// The load has brought back the lost part, and stopped before it told the part that stays of its
// new life.
TEST_F(LoadShareTest, ALoadThatStoppedAtItsEndIsFinished) {
  Set("owner0", kSaved, 10, 99);
  Set("owner1", kBegun, 10, 11);
  auto share = Missing();
  ASSERT_TRUE(share.ok()) << share.status();
  EXPECT_TRUE(share->optimizers[0].loaded);
  EXPECT_EQ(share->optimizers[0].begun, kBegun);
  EXPECT_EQ(share->optimizers[0].kept.size(), 2u);
  EXPECT_EQ(share->values, (std::vector<bool>{false, false}));
  Set("owner0", kSaved, 10, 99, kSteps + 1);
  EXPECT_THAT(std::string(Missing().status().message()), HasSubstr("has taken 4 steps"));
  share = Missing(/*accept_skew=*/true);
  ASSERT_TRUE(share.ok()) << share.status();
  EXPECT_EQ(share->optimizers[0].begun, kBegun);
}

// No owner was restarted. The part on owner1 was lost because it was dropped before the load.
TEST_F(LoadShareTest, TheLifeOfTheSaveIsNotTheOneThatALoadBegan) {
  Set("owner0", kSaved, 10, 11);
  Set("owner1", kBegun, 10, 11);
  auto share = Missing();
  ASSERT_TRUE(share.ok()) << share.status();
  EXPECT_EQ(share->optimizers[0].begun, kBegun);
}

TEST_F(LoadShareTest, PartsOfLivesThatNobodyCanFinishAreRefused) {
  Set("owner0", kSaved, 10, 99);
  Set("owner1", kOther, 99, 11);
  EXPECT_EQ(Missing().status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(LoadShareTest, AMissingValueThatAPartStillStepsIsRefused) {
  contents_["owner0"].values.clear();
  const auto share = Missing(/*accept_skew=*/true);
  EXPECT_EQ(share.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(share.status().message()), HasSubstr("'w0' is missing on owner0"));
}

TEST_F(LoadShareTest, EveryOwnerOfTheSaveIsThereOrMapped) {
  EXPECT_TRUE(CheckSavedOwners(index_, {"owner0", "owner1", "owner2"}, {}).ok());
  EXPECT_TRUE(CheckSavedOwners(index_, {"owner0", "other"}, {{"owner1", "other"}}).ok());
  const absl::Status refused = CheckSavedOwners(index_, {"owner0"}, {});
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("owner1 of the save is not among"));
}

}  // namespace
}  // namespace psd
