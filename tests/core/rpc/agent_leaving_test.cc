// An orderly stop. Accepted calls are answered and the answers received, other calls are refused as
// not applied, and the stop does not wait for peers that are gone.

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/time/time.h"
#include "core/base/status.h"
#include "core/carrier/faulty/fault_plan.h"
#include "core/rpc/rpc_agent.h"
#include "gtest/gtest.h"
#include "tests/core/rpc/agent_pair.h"

namespace psd::rpc {
namespace {

constexpr absl::Duration kAnHour = absl::Hours(1);
const CallOptions kEndless{absl::ZeroDuration(), false};

// Every message takes a while, so some are always on their way when a stop begins.
class AgentLeavingTest : public AgentPairTest {
 protected:
  AgentLeavingTest() {
    // Even on a slow machine, no live peer is given up.
    times_.lease = times_.silence = times_.reconnect_min = times_.reconnect_max = kAnHour;
    carrier::Faults slow;
    slow.min_delay = slow.max_delay = absl::Milliseconds(20);
    network_->SetFaults("*", "*", slow);
  }
  void TearDown() override {
    if (stopping_.joinable()) stopping_.join();
    AgentPairTest::TearDown();
  }

  void BeginStopOfB(absl::Duration drain) {
    stopping_ = std::thread([this, drain] { b_->agent->Shutdown(drain); });
  }
  // Waits until b refuses calls of a.
  void AwaitDraining() {
    absl::Status status;
    while (status.ok()) status = Sync(*a_, "b", Ask("test.count"), kEndless).status();
    ExpectDraining(status);
  }
  static void ExpectDraining(const absl::Status& status) {
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_TRUE(absl::StrContains(status.message(), "b is draining")) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "not applied")) << status;
    ASSERT_TRUE(GetDetail(status).has_value());
    EXPECT_FALSE(GetDetail(status)->fate_unknown) << status;
    EXPECT_FALSE(GetDetail(status)->remedy.empty());
  }

  std::thread stopping_;
};

// A peer that does not answer is given up soon.
class AgentLeavingShortlyTest : public AgentLeavingTest {
 protected:
  AgentLeavingShortlyTest() {
    times_.lease = absl::Milliseconds(1500);
    times_.silence = absl::Milliseconds(500);
    times_.reconnect_min = absl::Milliseconds(5);
    times_.reconnect_max = absl::Milliseconds(50);
  }
};

TEST_F(AgentLeavingTest, AnAnswerThatIsOnItsWayArrives) {
  StartBoth();
  Call call = a_->agent->StartCall("b", Ask("test.park"), kEndless);
  ServerCallPtr served = TakeParked();
  BeginStopOfB(kAnHour);
  AwaitDraining();
  ASSERT_TRUE(served->BeginApply());
  served->Reply(Payload{"applied", {}});
  ASSERT_TRUE(call.reply().Wait().ok()) << call.reply().Wait().status();
  EXPECT_EQ(call.reply().Wait()->payload.header, "applied");
}

TEST_F(AgentLeavingTest, AnAnswerThatACutTookAlongIsAskedForAgain) {
  StartBoth();
  Call call = a_->agent->StartCall("b", Ask("test.park"), kEndless);
  ServerCallPtr served = TakeParked();
  BeginStopOfB(kAnHour);
  AwaitDraining();
  ASSERT_TRUE(served->BeginApply());
  served->Reply(Payload{"applied", {}});
  network_->Cut("a", "b");
  ASSERT_TRUE(call.reply().Wait().ok()) << call.reply().Wait().status();
}

// At whatever moment the stop begins, each call is correctly reported as applied or as not applied.
TEST_F(AgentLeavingTest, EveryCallUnderLoadHasAFateThatIsKnown) {
  for (int round = 0; round < 10; ++round) {
    TearDown();
    SetUp();
    StartBoth();
    const int before = applied_;
    std::atomic<int> reported{0};
    std::atomic<bool> stop{false};
    std::vector<std::thread> callers;
    for (int i = 0; i < 8; ++i) {
      callers.emplace_back([&] {
        for (absl::Status status; status.ok();) {
          status = Sync(*a_, "b", Ask("test.count"), kEndless).status();
          reported += status.ok();
          stop = stop || reported > 20;
          EXPECT_FALSE(GetDetail(status).value_or(ErrorDetail{}).fate_unknown) << status;
        }
      });
    }
    while (!stop) std::this_thread::yield();
    b_->agent->Shutdown(kAnHour);
    for (std::thread& caller : callers) caller.join();
    EXPECT_EQ(applied_ - before, reported) << "round " << round;
  }
}

TEST_F(AgentLeavingTest, WhatIsCutOffBeforeItBeganWasNotApplied) {
  StartBoth();
  Call waits = a_->agent->StartCall("b", Ask("test.park"), kEndless);
  ServerCallPtr waiting = TakeParked();
  Call begun = a_->agent->StartCall("b", Ask("test.park"), kEndless);
  ServerCallPtr applying = TakeParked();
  ASSERT_TRUE(applying->BeginApply());
  b_->agent->Shutdown(absl::ZeroDuration());
  EXPECT_FALSE(waiting->BeginApply());
  ExpectDraining(waits.reply().Wait().status());
  const absl::Status unknown = begun.reply().Wait().status();
  EXPECT_EQ(unknown.code(), absl::StatusCode::kUnavailable) << unknown;
  EXPECT_TRUE(GetDetail(unknown)->fate_unknown);
}

TEST_F(AgentLeavingTest, NewcomersAreToldAndAnOldSessionGoesOn) {
  StartBoth();
  Call call = a_->agent->StartCall("b", Ask("test.park"), kEndless);
  ServerCallPtr served = TakeParked();
  BeginStopOfB(kAnHour);
  AwaitDraining();
  auto c = NewWorker("c");
  ASSERT_TRUE(c->agent->Start("").ok());
  c->agent->AddPeer("b", b_address_);
  ExpectDraining(Sync(*c, "b", Ask("test.count"), kEndless).status());
  EXPECT_TRUE(absl::StrContains(c->agent->Peers()[0].trouble, "draining"));
  EXPECT_FALSE(call.reply().IsReady());
  served->Reply(Payload{"late", {}});
  EXPECT_EQ(call.reply().Wait()->payload.header, "late");
}

TEST_F(AgentLeavingShortlyTest, ACallThatWaitsForItReachesTheNextOne) {
  StartBoth();
  a_->agent->StartCall("b", Ask("test.park"), kEndless);
  ServerCallPtr served = TakeParked();
  BeginStopOfB(kAnHour);
  AwaitDraining();
  Call patient = a_->agent->StartCall("b", Ask("test.echo", "hi"), {absl::ZeroDuration(), true});
  served->Reply(Payload{"done", {}});
  stopping_.join();
  b_.reset();
  auto next = NewWorker("b");
  AddEcho(*next);
  ASSERT_TRUE(next->agent->Start(b_address_).ok());
  ASSERT_TRUE(patient.reply().Wait().ok()) << patient.reply().Wait().status();
  EXPECT_EQ(patient.reply().Wait()->payload.header, "hi");
}

// Each of these tests would take an hour if the stop waited for a peer that never answers.
TEST_F(AgentLeavingShortlyTest, APeerThatDiedIsNotWaitedFor) {
  StartBoth();
  ASSERT_TRUE(Sync(*a_, "b", Ask("test.count")).ok());
  b_->agent->StartCall("a", Ask("test.echo"), {absl::ZeroDuration(), true});
  network_->Crash("a");
  Call pending = b_->agent->StartCall("a", Ask("test.echo"), {absl::ZeroDuration(), true});
  b_->agent->Shutdown(kAnHour);
  EXPECT_FALSE(pending.reply().Wait().ok());
}

TEST_F(AgentLeavingShortlyTest, APeerThatFellSilentIsNotWaitedFor) {
  StartBoth();
  ASSERT_TRUE(Sync(*a_, "b", Ask("test.count")).ok());
  network_->SetBlackHole("a", "b", true);
  network_->SetBlackHole("b", "a", true);
  Call pending = b_->agent->StartCall("a", Ask("test.echo"), kEndless);
  b_->agent->Shutdown(kAnHour);
  EXPECT_FALSE(pending.reply().Wait().ok());
}

TEST_F(AgentLeavingShortlyTest, APeerThatWasNeverReachedIsNotWaitedFor) {
  StartBoth();
  a_->agent->AddPeer("nobody", "nowhere:1");
  Call pending = a_->agent->StartCall("nobody", Ask("test.echo"), {absl::ZeroDuration(), true});
  a_->agent->Shutdown(kAnHour);
  EXPECT_FALSE(pending.reply().Wait().ok());
}

TEST_F(AgentLeavingShortlyTest, TwoThatLeaveTogetherWaitForEachOther) {
  StartBoth();
  ASSERT_TRUE(Sync(*a_, "b", Ask("test.count")).ok());
  ASSERT_TRUE(Sync(*b_, "a", Read("test.echo")).ok());
  Call call = a_->agent->StartCall("b", Ask("test.park"), kEndless);
  ServerCallPtr served = TakeParked();
  BeginStopOfB(kAnHour);
  std::thread other([this] { a_->agent->Shutdown(kAnHour); });
  served->Reply(Payload{"done", {}});
  EXPECT_TRUE(call.reply().Wait().ok()) << call.reply().Wait().status();
  other.join();
}

}  // namespace
}  // namespace psd::rpc
