#include "core/rpc/sequence_set.h"

#include <random>
#include <set>

#include "gtest/gtest.h"

namespace psd::rpc {
namespace {

TEST(SequenceSet, FillsUpInAnyOrder) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    SequenceSet set;
    std::set<uint64_t> model;
    for (int i = 0; i < 40; ++i) {
      uint64_t first = 1 + random() % 50;
      uint64_t last = first + (random() % 4 == 0 ? random() % 10 : 0);
      set.Add(first, last);
      for (uint64_t n = first; n <= last; ++n) model.insert(n);
      ASSERT_TRUE(IsWellFormed(set.ToAck()));
    }
    for (uint64_t n = 1; n <= 70; ++n) ASSERT_EQ(set.Contains(n), model.count(n) == 1) << n;
    ASSERT_EQ(set.Contains(set.watermark() + 1), false);
  }
}

TEST(SequenceSet, RefusesDisorderlyAcknowledgements) {
  EXPECT_TRUE(IsWellFormed(Ack{3, {5, 6, 8, 8}}));
  EXPECT_FALSE(IsWellFormed(Ack{3, {5}}));
  EXPECT_FALSE(IsWellFormed(Ack{3, {3, 6}}));
  EXPECT_FALSE(IsWellFormed(Ack{3, {6, 5}}));
  EXPECT_FALSE(IsWellFormed(Ack{3, {5, 8, 7, 9}}));
  EXPECT_FALSE(IsWellFormed(Ack{~uint64_t{0}, {}}));
}

}  // namespace
}  // namespace psd::rpc
