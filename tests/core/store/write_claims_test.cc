#include "core/store/write_claims.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace psd::store {
namespace {

using ::testing::ElementsAre;
using Ids = std::vector<GlobalId>;

GlobalId Id(uint64_t counter) {
  return {7, counter};
}

class WriteClaimsTest : public ::testing::Test {
 protected:
  // Claims `ids`. When the claim is granted, `label` is added to granted_.
  WriteClaims::ClaimId Claim(Ids ids, int label) {
    return claims_.Claim(std::move(ids),
                         [this, label](WriteClaims::ClaimId) { granted_.push_back(label); });
  }
  WriteClaims claims_;
  std::vector<int> granted_;
};

TEST_F(WriteClaimsTest, OPT_15_DisjointSetsGoSideBySide) {
  Claim({Id(1), Id(2)}, 1);
  Claim({Id(3)}, 2);
  Claim({}, 3);
  EXPECT_THAT(granted_, ElementsAre(1, 2, 3));
}

TEST_F(WriteClaimsTest, SharedIdsGoInOrderOfAsking) {
  auto first = Claim({Id(1), Id(2)}, 1);
  auto second = Claim({Id(2), Id(3)}, 2);
  auto third = Claim({Id(3)}, 3);  // id 3 is free, but the second claim came before
  EXPECT_THAT(granted_, ElementsAre(1));
  EXPECT_FALSE(claims_.Release(first));
  EXPECT_THAT(granted_, ElementsAre(1, 2));
  EXPECT_FALSE(claims_.Release(second));
  EXPECT_THAT(granted_, ElementsAre(1, 2, 3));
  EXPECT_FALSE(claims_.Release(third));
}

TEST_F(WriteClaimsTest, AClaimThatWasAloneIsWaitedForLikeAnyOther) {
  auto first = Claim({Id(1), Id(2)}, 1);
  auto second = Claim({Id(3)}, 2);
  Claim({Id(1)}, 3);
  claims_.Release(second);
  Claim({Id(2)}, 4);
  EXPECT_THAT(granted_, ElementsAre(1, 2));
  claims_.Release(first);
  EXPECT_THAT(granted_, ElementsAre(1, 2, 3, 4));
}

TEST_F(WriteClaimsTest, RepeatedIdsCountOnce) {
  auto first = Claim({Id(2), Id(1), Id(2)}, 1);
  Claim({Id(2)}, 2);
  claims_.Release(first);
  EXPECT_THAT(granted_, ElementsAre(1, 2));
}

TEST_F(WriteClaimsTest, GivingUpWhileWaitingLetsOthersPass) {
  auto first = Claim({Id(1)}, 1);
  auto second = Claim({Id(1), Id(2)}, 2);
  Claim({Id(2)}, 3);
  EXPECT_TRUE(claims_.Release(second));
  EXPECT_THAT(granted_, ElementsAre(1, 3));
  EXPECT_FALSE(claims_.Release(first));
  EXPECT_THAT(granted_, ElementsAre(1, 3));
}

TEST_F(WriteClaimsTest, LongQueueNeedsNoDeepStack) {
  constexpr int kWaiting = 100'000;
  int ran = 0;
  auto first = Claim({Id(1)}, 0);
  for (int i = 0; i < kWaiting; ++i) {
    claims_.Claim({Id(1)}, [&](WriteClaims::ClaimId claim) {
      ++ran;
      claims_.Release(claim);
    });
  }
  claims_.Release(first);
  EXPECT_EQ(ran, kWaiting);
}

TEST_F(WriteClaimsTest, NoTwoHoldersAndEveryoneGetsATurn) {
  constexpr int kThreads = 8, kRounds = 300, kIds = 5;
  std::atomic<int> holders[kIds] = {};
  std::atomic<int> granted{0}, clashes{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(t);
      for (int round = 0; round < kRounds; ++round) {
        Ids ids;
        for (int i = 0; i < 3; ++i) ids.push_back(Id(random() % kIds));
        std::vector<int> unique;
        for (int i = 0; i < kIds; ++i) {
          if (std::find(ids.begin(), ids.end(), Id(i)) != ids.end()) unique.push_back(i);
        }
        claims_.Claim(ids, [&, unique](WriteClaims::ClaimId claim) {
          for (int i : unique) clashes += holders[i]++ != 0;
          std::this_thread::yield();
          for (int i : unique) --holders[i];
          ++granted;
          claims_.Release(claim);
        });
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(granted, kThreads * kRounds);
  EXPECT_EQ(clashes, 0);
}

}  // namespace
}  // namespace psd::store
