#include "core/store/write_claims.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/ids.h"
#include "core/base/stream.h"
#include "core/device/emulated/emulated_device.h"
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
  WriteClaims::ClaimId Claim(Ids ids, int label, const Stream* stream = nullptr) {
    return claims_.Claim(
        std::move(ids), [this, label](WriteClaims::ClaimId) { granted_.push_back(label); }, stream);
  }
  WriteClaims claims_;
  std::vector<int> granted_;
  const std::vector<std::shared_ptr<EmulatedDevice>> devices_ = *EmulatedDevice::Create(2);
  const Stream* const stream_ = &devices_[0]->default_stream();
  const Stream* const other_ = &devices_[1]->default_stream();
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

TEST_F(WriteClaimsTest, AClaimOfTheSameStreamWaitsOnlyUntilTheOneBeforeIsHandedOn) {
  auto first = Claim({Id(1), Id(2)}, 1, stream_);
  auto second = Claim({Id(2), Id(3)}, 2, stream_);
  auto third = Claim({Id(3)}, 3, stream_);
  EXPECT_THAT(granted_, ElementsAre(1));
  claims_.HandOn(first);
  EXPECT_THAT(granted_, ElementsAre(1, 2));
  claims_.HandOn(second);
  EXPECT_THAT(granted_, ElementsAre(1, 2, 3));
  EXPECT_FALSE(claims_.Release(second));
  EXPECT_FALSE(claims_.Release(first));
  EXPECT_FALSE(claims_.Release(third));
}

TEST_F(WriteClaimsTest, AClaimThatWasHandedOnAloneIsJoined) {
  auto first = Claim({Id(1)}, 1, stream_);
  claims_.HandOn(first);
  Claim({Id(1)}, 2, stream_);
  EXPECT_THAT(granted_, ElementsAre(1, 2));
}

TEST_F(WriteClaimsTest, AllOtherClaimsWaitForTheEnd) {
  uint64_t id = 0;
  for (const Stream* const waiting : {static_cast<const Stream*>(nullptr), other_}) {
    granted_.clear();
    const Ids ids = {Id(++id)};
    auto first = Claim(ids, 1, stream_);
    auto second = Claim(ids, 2, stream_);
    Claim(ids, 3, waiting);
    Claim(ids, 4, stream_);
    claims_.HandOn(first);
    claims_.HandOn(second);
    EXPECT_THAT(granted_, ElementsAre(1, 2));
    claims_.Release(second);
    EXPECT_THAT(granted_, ElementsAre(1, 2));
    claims_.Release(first);
    EXPECT_THAT(granted_, ElementsAre(1, 2, 3));
  }
}

TEST_F(WriteClaimsTest, OnlySoManyHoldAnIdTogether) {
  std::vector<WriteClaims::ClaimId> claims;
  for (size_t i = 0; i < kMaxTogether + 2; ++i) {
    claims.push_back(Claim({Id(1)}, static_cast<int>(i), stream_));
    claims_.HandOn(claims[i]);
  }
  EXPECT_EQ(granted_.size(), kMaxTogether);
  claims_.Release(claims[1]);
  EXPECT_EQ(granted_.size(), kMaxTogether + 1);
  claims_.HandOn(claims[kMaxTogether]);
  EXPECT_EQ(granted_.size(), kMaxTogether + 1);
  claims_.Release(claims[0]);
  EXPECT_EQ(granted_.size(), kMaxTogether + 2);
}

// Its work may have ended before its holder could say that all of it was added.
TEST_F(WriteClaimsTest, AClaimThatWasReleasedIsNotHandedOn) {
  auto first = Claim({Id(1)}, 1, stream_);
  Claim({Id(1)}, 2, stream_);
  claims_.Release(first);
  Claim({Id(1)}, 3, stream_);
  claims_.HandOn(first);
  EXPECT_THAT(granted_, ElementsAre(1, 2));
}

// Against a plain list of claims.
TEST_F(WriteClaimsTest, RandomClaimsAreGrantedByTheRules) {
  struct Plain {
    WriteClaims::ClaimId claim;
    int label;
    Ids ids;
    const Stream* stream;
    bool granted = false;
    bool handed_on = false;
  };
  for (unsigned seed = 0; seed < 20; ++seed) {
    std::mt19937 random(seed);
    WriteClaims claims;
    std::vector<Plain> all;  // that are not released
    std::vector<int> granted, want;
    const auto may_be_granted = [&all](size_t at) {
      for (const GlobalId& id : all[at].ids) {
        size_t before = 0;
        for (size_t i = 0; i < at; ++i) {
          if (std::find(all[i].ids.begin(), all[i].ids.end(), id) == all[i].ids.end()) continue;
          if (!all[i].handed_on || all[i].stream != all[at].stream) return false;
          ++before;
        }
        if (before >= kMaxTogether) return false;
      }
      return true;
    };
    const auto expect_grants = [&] {
      for (size_t at = 0; at < all.size(); ++at) {
        if (all[at].granted || !may_be_granted(at)) continue;
        all[at].granted = true;
        want.push_back(all[at].label);
      }
      std::vector<int> sorted = granted;  // the order within one call depends on the ids
      std::sort(sorted.begin(), sorted.end());
      std::sort(want.begin(), want.end());
      ASSERT_EQ(sorted, want) << "seed " << seed;
    };
    for (int i = 0; i < 400; ++i) {
      const unsigned what = random() % 3;
      if (what == 0 || all.empty()) {
        const Stream* const streams[] = {nullptr, stream_, stream_, stream_, other_};
        Plain plain{0, i, {}, streams[random() % 5]};
        for (int each = 0; each < 4; ++each)
          if (random() % 2 == 0) plain.ids.push_back(Id(each));
        all.push_back(plain);
        all.back().claim = claims.Claim(
            plain.ids, [&granted, i](WriteClaims::ClaimId) { granted.push_back(i); }, plain.stream);
      } else {
        const size_t at = random() % all.size();
        if (what == 1 && all[at].granted && all[at].stream != nullptr) {
          all[at].handed_on = true;
          claims.HandOn(all[at].claim);
        } else if (what == 2) {
          EXPECT_EQ(claims.Release(all[at].claim), !all[at].granted);
          all.erase(all.begin() + static_cast<std::ptrdiff_t>(at));
        }
      }
      expect_grants();
    }
  }
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
