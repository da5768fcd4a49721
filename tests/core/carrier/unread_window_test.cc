#include "core/carrier/grpc/unread_window.h"

#include "absl/status/status.h"
#include "gtest/gtest.h"

namespace psd::carrier {
namespace {

TEST(UnreadWindow, StopsAtTheBoundAndGoesOnWhenThePeerHasRead) {
  UnreadWindow window;
  window.set_bound(100);
  window.OnSent(60);
  EXPECT_TRUE(window.MaySend());
  window.OnSent(60);  // exceeds the bound by one frame
  EXPECT_FALSE(window.MaySend());
  EXPECT_TRUE(window.OnRead(20).ok());
  EXPECT_FALSE(window.MaySend());
  EXPECT_TRUE(window.OnRead(21).ok());
  EXPECT_TRUE(window.MaySend());
}

TEST(UnreadWindow, OneFrameMayAlwaysBeUnderWay) {
  UnreadWindow window;
  EXPECT_TRUE(window.MaySend());
  window.OnSent(1);
  EXPECT_FALSE(window.MaySend());
  EXPECT_TRUE(window.OnRead(1).ok());
  EXPECT_TRUE(window.MaySend());
}

TEST(UnreadWindow, RefusesMoreThanWasSent) {
  UnreadWindow window;
  window.OnSent(10);
  EXPECT_EQ(window.OnRead(11).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(window.OnRead(10).ok());
}

// Several threads of the peer read, and what they say may overtake each other.
TEST(UnreadWindow, TakesWhatComesLate) {
  UnreadWindow window;
  window.set_bound(10);
  window.OnSent(20);
  EXPECT_TRUE(window.OnRead(15).ok());
  EXPECT_TRUE(window.OnRead(5).ok());
  EXPECT_TRUE(window.MaySend());
}

// For frames of any size: when the receiver has read everything, the sender may send.
TEST(ReadCount, NeverLeavesTheSenderWaiting) {
  for (size_t bound : {0, 1, 7, 100}) {
    for (size_t frame : {1, 3, 49, 50, 51, 99, 100, 250}) {
      UnreadWindow window;
      window.set_bound(bound);
      ReadCount read(bound);
      for (int round = 0; round < 50; ++round) {
        size_t sent = 0;
        while (sent < 1000 && window.MaySend()) {
          window.OnSent(frame);
          ++sent;
        }
        ASSERT_GT(sent, 0u) << bound << " " << frame << " " << round;
        for (size_t i = 0; i < sent; ++i) {
          const auto told = read.Add(frame);
          if (told.has_value()) {
            ASSERT_TRUE(window.OnRead(*told).ok());
          }
        }
      }
    }
  }
}

TEST(ReadCount, TellsForEveryHalfOfTheBound) {
  ReadCount read(100);
  EXPECT_FALSE(read.Add(49).has_value());
  EXPECT_EQ(read.Add(1), 50u);
  EXPECT_FALSE(read.Add(49).has_value());
  EXPECT_EQ(read.Add(200), 299u);
  EXPECT_EQ(read.Add(1, /*at_once=*/true), 300u);
}

}  // namespace
}  // namespace psd::carrier
