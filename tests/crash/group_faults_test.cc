// Ranks of a group in processes of their own are killed and stopped. The others learn who it was,
// and go on without it.

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/psd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/crash/process_world.h"

namespace psd::crash {
namespace {

using ::testing::Contains;
using ::testing::EndsWith;
using ::testing::HasSubstr;

class GroupFaultsTest : public ::testing::Test {
 protected:
  // Returns when all ranks are at work.
  void Start(int count) {
    std::vector<std::string> names;
    for (int rank = 0; rank < count; ++rank) names.push_back(absl::StrCat("t", rank));
    for (const std::string& name : names) {
      ranks_.push_back(std::make_unique<Process>(std::vector<std::string>{
          "tests/crash/rank_main", name,
          absl::StrCat(owner_.address().name, "=", owner_.address().address),
          absl::StrJoin(names, ",")}));
    }
    for (const auto& rank : ranks_) EXPECT_EQ(rank->WaitForLine("joined "), absl::StrCat(count));
    for (const auto& rank : ranks_) rank->WaitForLine("done 3");
  }

  // The ranks other than `lost` say that one of those is lost, build the group again and compute
  // on.
  void ExpectOthersGoOn(const std::set<size_t>& lost) {
    std::vector<Process*> others;
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      if (lost.count(rank) == 0) others.push_back(ranks_[rank].get());
    }
    std::vector<std::string> names;
    for (const size_t rank : lost) names.push_back(absl::StrCat("t", rank));
    for (Process* other : others) {
      const std::vector<std::string> error = absl::StrSplit(other->WaitForLine("error "), ' ');
      EXPECT_THAT(names, Contains(error.back()));
    }
    for (Process* other : others) {
      EXPECT_EQ(other->WaitForLine("joined "), absl::StrCat(others.size()));
      other->WaitForLine("done ");
    }
  }

  Daemon owner_;
  std::vector<std::unique_ptr<Process>> ranks_;
};

TEST_F(GroupFaultsTest, DDP_30_AKilledRankIsNamedAndTheOthersGoOn) {
  Start(3);
  ranks_[1]->Kill();
  ExpectOthersGoOn({1});
}

// Some of the others may learn of one death first, and some of the other one.
TEST_F(GroupFaultsTest, DDP_30_WhenTwoRanksAreKilledTheOthersGoOn) {
  Start(4);
  for (const size_t rank : {0, 2}) ranks_[rank]->Kill();
  ExpectOthersGoOn({0, 2});
}

TEST_F(GroupFaultsTest, DDP_30_ARankThatIsLeftAloneGoesOn) {
  Start(3);
  for (const size_t rank : {2, 0}) ranks_[rank]->Kill();
  ExpectOthersGoOn({0, 2});
}

TEST_F(GroupFaultsTest, DDP_30_AStoppedRankIsNamedAndLearnsItWhenItComesBack) {
  Start(3);
  ranks_[2]->Stop();
  ExpectOthersGoOn({2});
  ranks_[2]->Continue();
  EXPECT_EQ(ranks_[2]->WaitForLine("error "), "DEADLINE_EXCEEDED t2");
  ranks_[0]->WaitForLine("done ");
}

// ---------------------------------------------------------------- sharded training

constexpr size_t kRanks = 3;

class TrainingFaultsTest : public ::testing::Test {
 protected:
  // Starts the rank t`rank`, which kills itself at `stage`, if one is given. `timeout` is that of
  // its collective calls. A killed rank is noticed without it.
  void Start(size_t rank, const std::string& stage = "", const std::string& timeout = "60s") {
    std::vector<std::string> command = {
        "tests/crash/training_rank_main", absl::StrCat("t", rank),
        absl::StrCat(owner_.address().name, "=", owner_.address().address), "t0,t1,t2", timeout};
    if (!stage.empty()) command.push_back(stage);
    ranks_[rank] = std::make_unique<Process>(command);
  }

  // The ranks other than `lost` say who it was, and train on with equal parameters.
  void ExpectOthersTrainOn(size_t lost) {
    std::vector<Process*> others;
    for (size_t rank = 0; rank < kRanks; ++rank) {
      if (rank != lost) others.push_back(ranks_[rank].get());
    }
    for (Process* other : others)
      EXPECT_THAT(other->WaitForLine("error "), EndsWith(absl::StrCat(" t", lost)));
    for (Process* other : others) EXPECT_EQ(other->WaitForLine("joined "), "2");
    for (const int step : {1, 2, 5}) {
      const std::string prefix = absl::StrCat("step ", step, " ");
      const std::string digest = others[0]->WaitForLine(prefix);
      EXPECT_EQ(others[1]->WaitForLine(prefix), digest) << prefix;
    }
  }

  Daemon owner_;
  std::unique_ptr<Process> ranks_[kRanks];
};

class StageTest : public TrainingFaultsTest, public ::testing::WithParamInterface<const char*> {};

INSTANTIATE_TEST_SUITE_P(Stages, StageTest,
                         ::testing::Values("before-average", "in-average", "further-in-average",
                                           "after-average", "in-step", "further-in-step",
                                           "in-consolidation", "further-in-consolidation"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST_P(StageTest, DDP_30_ARankThatIsKilledIsNamedAndTheOthersTrainOnAlike) {
  for (size_t rank = 0; rank < kRanks; ++rank) Start(rank, rank == 1 ? GetParam() : "");
  for (const auto& rank : ranks_) EXPECT_EQ(rank->WaitForLine("joined "), "3");
  ExpectOthersTrainOn(1);
}

TEST_F(TrainingFaultsTest, DDP_30_ARankThatIsKilledWhileItJoinsIsNamedOnEveryRank) {
  for (const size_t rank : {1, 0}) {
    Start(rank);
    ranks_[rank]->WaitForLine("joining");
  }
  ranks_[1]->Kill();
  Start(2);
  for (const size_t rank : {0, 2})
    EXPECT_THAT(ranks_[rank]->WaitForLine("not joined "), HasSubstr("t1"));
}

TEST_F(TrainingFaultsTest, DDP_30_AStoppedRankIsNamedAndChangesNothingWhenItComesBack) {
  for (size_t rank = 0; rank < kRanks; ++rank) Start(rank, /*stage=*/"", /*timeout=*/"3s");
  for (const auto& rank : ranks_) rank->WaitForLine("step 2 ");
  ranks_[2]->Stop();
  ExpectOthersTrainOn(2);
  ranks_[2]->Continue();
  EXPECT_THAT(ranks_[2]->WaitForLine("error "), EndsWith(" t2"));
  const std::string digest = ranks_[0]->WaitForLine("step 20 ");
  EXPECT_EQ(ranks_[1]->WaitForLine("step 20 "), digest);
}

}  // namespace
}  // namespace psd::crash
