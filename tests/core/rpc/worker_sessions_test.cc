#include "core/rpc/worker_sessions.h"

#include "absl/time/time.h"
#include "core/rpc/header.h"
#include "core/rpc/session_types.h"
#include "gtest/gtest.h"

namespace psd::rpc {
namespace {

constexpr absl::Time kNow = absl::UnixEpoch();

WorkerSessions::Options TrainerOptions() {
  WorkerSessions::Options options;
  options.self = {"trainer0", 7};
  return options;
}

class WorkerSessionsTest : public ::testing::Test {
 protected:
  // Dials "owner0" as link 1 and is welcomed there. The owner has not said hello itself.
  void Welcome(absl::Duration lease) {
    Actions actions;
    sessions_.AddPeer("owner0", "somewhere");
    CallSpec connect;
    connect.connect_only = true;
    sessions_.StartCall(kNow, "owner0", connect, actions);
    sessions_.OnDialed(kNow, "owner0", 1, actions);
    Header welcome;
    welcome.kind = MessageKind::kWelcome;
    welcome.name = "owner0";
    welcome.incarnation = 9;
    welcome.epoch = 3;
    welcome.sequence = 1;
    welcome.timeout_us = static_cast<uint64_t>(absl::ToInt64Microseconds(lease));
    sessions_.OnControl(kNow, 1, welcome, actions);
  }

  WorkerSessions sessions_{TrainerOptions()};
};

TEST_F(WorkerSessionsTest, WhoAnswersIsKnownFromTheWelcomeBeforeThePeersOwnHello) {
  Welcome(absl::Seconds(10));
  EXPECT_EQ(sessions_.PeerOf(1), (PeerInfo{"owner0", 9}));
}

TEST_F(WorkerSessionsTest, AShortLeaseIsRenewedThreeTimesWithinIt) {
  Welcome(absl::Milliseconds(300));
  EXPECT_LE(sessions_.NextWake(), kNow + absl::Milliseconds(100));
}

TEST_F(WorkerSessionsTest, ALeaseOfNothingKeepsNobodyBusy) {
  Welcome(absl::Microseconds(1));
  EXPECT_EQ(sessions_.callers().at("owner0")->talk_every(), absl::Milliseconds(10));
}

}  // namespace
}  // namespace psd::rpc
