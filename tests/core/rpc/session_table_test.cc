#include "core/rpc/session_table.h"

#include "core/rpc/stall_detector.h"
#include "gtest/gtest.h"

namespace psd::rpc {
namespace {

using Kind = HelloOutcome::Kind;
const absl::Time kNow = absl::UnixEpoch();

class SessionTableTest : public ::testing::Test {
 protected:
  HelloOutcome Hello(absl::Time now, LinkId link, Incarnation who, uint64_t number,
                     uint64_t resume = 0) {
    Header hello;
    hello.kind = MessageKind::kHello;
    hello.name = "trainer0";
    hello.incarnation = who;
    hello.sequence = number;
    hello.epoch = resume;
    hello.callee_incarnation = 99;
    return table_.OnHello(now, link, hello, actions_);
  }

  SessionOptions options_;
  SessionTable table_{options_, {"owner0", 99}, 2};
  Actions actions_;
};

TEST_F(SessionTableTest, ResumesTheEpochThatItIssued) {
  HelloOutcome first = Hello(kNow, 1, 5, 1);
  EXPECT_FALSE(first.resumed);
  HelloOutcome again = Hello(kNow, 2, 5, 2, first.epoch);
  EXPECT_TRUE(again.resumed);
  EXPECT_EQ(again.epoch, first.epoch);
}

TEST_F(SessionTableTest, AnEndedEpochNeverComesBack) {
  HelloOutcome first = Hello(kNow, 1, 5, 1);
  table_.Tick(kNow + options_.lease, absl::ZeroDuration(), actions_);
  EXPECT_EQ(table_.Find(first.epoch), nullptr);
  HelloOutcome again = Hello(kNow + options_.lease, 1, 5, 2, first.epoch);
  EXPECT_FALSE(again.resumed);
  EXPECT_GT(again.epoch, first.epoch);
}

TEST_F(SessionTableTest, RPC_03_AConnectedHolderKeepsItsName) {
  Hello(kNow, 1, 5, 1);
  HelloOutcome second = Hello(kNow, 2, 6, 1);
  EXPECT_EQ(second.kind, Kind::kRefused);
  EXPECT_EQ(second.status.code(), absl::StatusCode::kAlreadyExists);
}

TEST_F(SessionTableTest, RPC_03_AClosedHolderLosesItsNameAtOnceAndForEver) {
  HelloOutcome first = Hello(kNow, 1, 5, 1);
  table_.Find(first.epoch)->set_link(0);
  EXPECT_EQ(Hello(kNow, 2, 6, 1).kind, Kind::kWelcome);
  EXPECT_EQ(table_.Find(first.epoch), nullptr);
  table_.FindByPeer({"trainer0", 6})->set_link(0);
  EXPECT_EQ(Hello(kNow, 3, 5, 2).status.code(), absl::StatusCode::kAborted);
}

TEST_F(SessionTableTest, ASilentHolderKeepsItsNameUntilItsLeaseEnds) {
  Hello(kNow, 1, 5, 1);
  absl::Time later = kNow + options_.silence + absl::Seconds(1);
  EXPECT_EQ(Hello(later, 2, 6, 1).status.code(), absl::StatusCode::kUnavailable);
  table_.Tick(kNow + options_.lease, absl::ZeroDuration(), actions_);
  EXPECT_EQ(Hello(kNow + options_.lease, 3, 6, 2).kind, Kind::kWelcome);
}

TEST_F(SessionTableTest, AHolderWhoseLinkEndedInSilenceKeepsItsNameUntilItsLeaseEnds) {
  HelloOutcome first = Hello(kNow, 1, 5, 1);
  table_.Find(first.epoch)->set_link(0);
  table_.Find(first.epoch)->set_silent();
  absl::Time later = kNow + options_.silence + absl::Seconds(1);
  HelloOutcome refused = Hello(later, 2, 6, 1);
  EXPECT_EQ(refused.status.code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(refused.status.message().find("free in 6s"), std::string::npos) << refused.status;
  EXPECT_TRUE(Hello(later, 3, 5, 2, first.epoch).resumed) << "the holder is not harmed";
  EXPECT_EQ(Hello(later, 4, 6, 2).status.code(), absl::StatusCode::kAlreadyExists);
}

TEST_F(SessionTableTest, AHolderWhoseLeaseEndedFirstIsFencedByItsSuccessor) {
  Hello(kNow, 1, 5, 1);
  const absl::Time ended = kNow + options_.lease;
  table_.Tick(ended, absl::ZeroDuration(), actions_);
  HelloOutcome second = Hello(ended, 2, 6, 1);
  EXPECT_EQ(second.kind, Kind::kWelcome);
  table_.End(second.epoch, actions_);
  EXPECT_EQ(Hello(ended, 3, 5, 2).status.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(Hello(ended, 4, 6, 2).kind, Kind::kWelcome) << "it lost its name to nobody";
}

TEST_F(SessionTableTest, AnOvertakenHelloIsNotAnswered) {
  HelloOutcome first = Hello(kNow, 1, 5, 2);
  EXPECT_EQ(Hello(kNow, 2, 5, 1).kind, Kind::kStale);
  EXPECT_NE(table_.Find(first.epoch), nullptr);
}

TEST(StallDetector, ExtendsByTheStallAndOneLeaseMore) {
  StallDetector stalls(absl::Seconds(9));
  EXPECT_EQ(stalls.OnTick(kNow), absl::ZeroDuration());
  EXPECT_EQ(stalls.OnTick(kNow + absl::Seconds(3)), absl::ZeroDuration());
  EXPECT_EQ(stalls.OnTick(kNow + absl::Seconds(7)), absl::Seconds(4 + 9));
}

}  // namespace
}  // namespace psd::rpc
