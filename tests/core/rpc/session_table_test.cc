#include "core/rpc/session_table.h"

#include <string>
#include <vector>

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
    return table_.OnHello(now, link, "grpc 10.0.0.1:1", hello, actions_);
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

// Workers with distinct names and incarnations, which connect from addresses that a test chooses.
class SessionTableSharesTest : public ::testing::Test {
 protected:
  static constexpr size_t kPlaces = 64;

  HelloOutcome Hello(Incarnation who, const std::string& origin, uint64_t resume = 0) {
    Header hello;
    hello.kind = MessageKind::kHello;
    hello.name = "trainer" + std::to_string(who);
    hello.incarnation = who;
    hello.sequence = ++hellos_;
    hello.epoch = resume;
    hello.callee_incarnation = 99;
    return table_.OnHello(kNow, ++links_, origin, hello, actions_);
  }
  // Opens sessions of new workers until one is refused, and returns how many were opened. If `port`
  // is 0, each comes from a port of its own.
  size_t Flood(const std::string& host, int port = 0) {
    size_t opened = 0;
    while (opened <= kPlaces) {
      const int from = port != 0 ? port : 1000 + static_cast<int>(opened);
      latest_ = Hello(++next_, "grpc " + host + ":" + std::to_string(from));
      if (latest_.kind != Kind::kWelcome) break;
      ++opened;
    }
    return opened;
  }

  SessionOptions options_;
  SessionTable table_{options_, {"owner0", 99}, kPlaces};
  Actions actions_;
  HelloOutcome latest_;
  uint64_t hellos_ = 0;
  LinkId links_ = 0;
  Incarnation next_ = 1000;
};

TEST_F(SessionTableSharesTest, OneAddressFillsHalfAndNewcomersFromElsewhereComeIn) {
  EXPECT_EQ(Flood("10.0.0.1"), kPlaces / 2 + 1);
  EXPECT_EQ(latest_.status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(latest_.status.message(),
            "owner0: 33 of 64 sessions are open, 33 of them by the host of grpc 10.0.0.1:1033, "
            "which may hold 31 while so few are left; close some, or wait for leases to end");
  for (int host = 2; host < 6; ++host) {
    EXPECT_EQ(Hello(host, "grpc 10.0.0." + std::to_string(host) + ":1").kind, Kind::kWelcome);
  }
}

TEST_F(SessionTableSharesTest, OneConnectionHasHalfOfWhatItsAddressHas) {
  ASSERT_EQ(Flood("10.0.0.1"), 33u);
  const size_t of_connection = Flood("10.0.0.2", 7);
  EXPECT_EQ(latest_.status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(latest_.status.message().find("by the connection from grpc 10.0.0.2:7"),
            std::string::npos)
      << latest_.status;
  EXPECT_GT(of_connection, 0u);
  EXPECT_EQ(Hello(5, "grpc 10.0.0.2:8").kind, Kind::kWelcome);
}

TEST_F(SessionTableSharesTest, WhoHasAPlaceComesBackToItWhateverItsShare) {
  const HelloOutcome first = Hello(5, "grpc 10.0.0.1:1");
  Flood("10.0.0.1");
  const HelloOutcome back = Hello(5, "grpc 10.0.0.1:9", first.epoch);
  EXPECT_TRUE(back.resumed);
  EXPECT_EQ(Hello(5, "grpc 10.0.0.1:9").kind, Kind::kWelcome) << "with a session of a new epoch";
  EXPECT_EQ(Hello(6, "grpc 10.0.0.1:9").status.code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(SessionTableSharesTest, WhoIsRefusedKeepsTheSessionThatItHad) {
  const HelloOutcome first = Hello(5, "grpc 10.0.0.2:1");
  Flood("10.0.0.1");
  EXPECT_EQ(Hello(5, "grpc 10.0.0.1:9").status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(Hello(5, "grpc 10.0.0.2:1", first.epoch).resumed);
}

TEST_F(SessionTableSharesTest, ASessionCountsWhereItWasResumedAndNoLongerWhenItEnds) {
  std::vector<uint64_t> epochs;
  for (Incarnation who = 1; who <= 33; ++who) epochs.push_back(Hello(who, "grpc 10.0.0.1:1").epoch);
  ASSERT_EQ(Flood("10.0.0.1"), 0u);
  for (Incarnation who = 1; who <= 33; ++who) {
    ASSERT_TRUE(Hello(who, "grpc 10.0.0.2:1", epochs[who - 1]).resumed);
  }
  EXPECT_EQ(Hello(50, "grpc 10.0.0.2:2").status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(Hello(51, "grpc 10.0.0.1:2").kind, Kind::kWelcome) << "nothing counts here any more";
  table_.Tick(kNow + options_.lease, absl::ZeroDuration(), actions_);
  EXPECT_TRUE(table_.sessions().empty());
  EXPECT_EQ(Flood("10.0.0.2"), 33u);
}

TEST(StallDetector, ExtendsByTheStallAndOneLeaseMore) {
  StallDetector stalls(absl::Seconds(9));
  EXPECT_EQ(stalls.OnTick(kNow), absl::ZeroDuration());
  EXPECT_EQ(stalls.OnTick(kNow + absl::Seconds(3)), absl::ZeroDuration());
  EXPECT_EQ(stalls.OnTick(kNow + absl::Seconds(7)), absl::Seconds(4 + 9));
}

}  // namespace
}  // namespace psd::rpc
