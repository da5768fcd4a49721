// Ranks of a group in processes of their own are killed and stopped. The others learn who it was,
// and go on without it.

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/psd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/crash/process_world.h"

namespace psd::crash {
namespace {

using ::testing::EndsWith;

class GroupFaultsTest : public ::testing::Test {
 protected:
  GroupFaultsTest() {
    for (const std::string name : {"t0", "t1", "t2"}) {
      ranks_.push_back(std::make_unique<Process>(std::vector<std::string>{
          "tests/crash/rank_main", name,
          absl::StrCat(owner_.address().name, "=", owner_.address().address), "t0,t1,t2"}));
    }
    for (const auto& rank : ranks_) EXPECT_EQ(rank->WaitForLine("joined "), "3");
    for (const auto& rank : ranks_) rank->WaitForLine("done 3");
  }

  // The ranks other than `lost` say who it was, build the group again and compute on.
  void ExpectOthersGoOn(size_t lost) {
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      if (rank == lost) continue;
      EXPECT_THAT(ranks_[rank]->WaitForLine("error "), EndsWith(absl::StrCat(" t", lost)));
    }
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      if (rank == lost) continue;
      EXPECT_EQ(ranks_[rank]->WaitForLine("joined "), "2");
      ranks_[rank]->WaitForLine("done ");
    }
  }

  Daemon owner_;
  std::vector<std::unique_ptr<Process>> ranks_;
};

TEST_F(GroupFaultsTest, DDP_30_AKilledRankIsNamedAndTheOthersGoOn) {
  ranks_[1]->Kill();
  ExpectOthersGoOn(1);
}

TEST_F(GroupFaultsTest, DDP_30_AStoppedRankIsNamedAndLearnsItWhenItComesBack) {
  ranks_[2]->Stop();
  ExpectOthersGoOn(2);
  ranks_[2]->Continue();
  EXPECT_EQ(ranks_[2]->WaitForLine("error "), "DEADLINE_EXCEEDED t2");
  ranks_[0]->WaitForLine("done ");
}

}  // namespace
}  // namespace psd::crash
