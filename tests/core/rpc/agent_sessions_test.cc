// The fate of calls, sessions and names when connections, peers or leases end.

#include <atomic>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/base/buffer.h"
#include "core/base/future.h"
#include "core/base/memory_budget.h"
#include "core/base/status.h"
#include "core/rpc/rpc_agent.h"
#include "gtest/gtest.h"
#include "tests/core/rpc/agent_pair.h"

namespace psd::rpc {
namespace {

using AgentSessionsTest = AgentPairTest;

// Sessions outlive all that happens to their links.
class LongLeaseTest : public AgentPairTest {
 protected:
  LongLeaseTest() { times_.lease = times_.retry_window = absl::Minutes(5); }
};

TEST_F(AgentSessionsTest, RPC_58_ACallInFlightFailsWhenItsPeerDies) {
  StartBoth();
  Call call = a_->agent->StartCall("b", Ask("test.park"), {absl::ZeroDuration(), false});
  ServerCallPtr served = TakeParked();
  network_->Crash("b");
  EXPECT_EQ(call.reply().Wait().status().code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(GetDetail(call.reply().Wait().status())->fate_unknown);
}

TEST_F(AgentSessionsTest, ARestartedCalleeAbortsWhatWasMeantForItsPredecessor) {
  Promise<absl::Status> lost;
  a_->agent->OnSessionLost(
      [lost](const PeerInfo&, uint64_t, const absl::Status& why) { lost.Set(absl::Status(why)); });
  StartBoth();
  Call call = a_->agent->StartCall("b", Ask("test.park"), {absl::ZeroDuration(), true});
  ServerCallPtr served = TakeParked();
  Incarnation first = b_->incarnation;
  network_->Crash("b");
  auto second = NewWorker("b");
  AddEcho(*second);
  ASSERT_TRUE(second->agent->Start(b_address_).ok());
  absl::Status status = call.reply().Wait().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), IncarnationToString(first)));
  EXPECT_TRUE(absl::StrContains(status.message(), IncarnationToString(second->incarnation)));
  EXPECT_EQ(lost.future().Wait()->code(), absl::StatusCode::kAborted);
  EXPECT_EQ(*Sync(*a_, "b", Ask("test.echo", "new")), "new");
  Request only_first = Ask("test.echo");
  only_first.only_incarnation = first;
  EXPECT_EQ(Sync(*a_, "b", std::move(only_first)).status().code(), absl::StatusCode::kAborted);
}

// The read is sent again and answered again; what the lost answer gave is taken back, once.
TEST_F(LongLeaseTest, WhatALostAnswerOfAReadGaveIsTakenBack) {
  StartBoth();
  std::atomic<int> dropped{0};
  Call call = a_->agent->StartCall("b", Read("test.park_read"), {absl::ZeroDuration(), false});
  ServerCallPtr served = TakeParked();
  network_->SetBlackHole("b", "a", true);
  served->OnAnswerDropped([&] { ++dropped; });
  served->Reply(Payload{"lost", {}});
  network_->Cut("a", "b");
  network_->SetBlackHole("b", "a", false);
  served = TakeParked();
  EXPECT_EQ(dropped, 1);
  served->OnAnswerDropped([&] { dropped += 100; });
  served->Reply(Payload{"taken", {}});
  ASSERT_TRUE(call.reply().Wait().ok()) << call.reply().Wait().status();
  EXPECT_EQ(call.reply().Wait()->payload.header, "taken");
  ASSERT_TRUE(Sync(*a_, "b", Ask("test.count")).ok());
  EXPECT_EQ(dropped, 1);
}

// The callee has no memory to keep the answer until the caller has it, and the only copy is lost.
TEST_F(LongLeaseTest, WhatALostAnswerGaveIsTakenBackThoughItWasNotKept) {
  memory_ = MemoryAccount::Create(size_t{64} << 10, NewHeapAllocator());
  b_.reset();
  b_ = NewWorker("b", 1);
  AddPark(*b_, "test.park", MethodKind::kMutation);
  AddEcho(*b_);
  StartBoth();
  Promise<Unit> dropped;
  const Future<Unit> taken_back = dropped.future();
  Call call = a_->agent->StartCall("b", Ask("test.park"), {absl::ZeroDuration(), false});
  ServerCallPtr served = TakeParked();
  EXPECT_TRUE(served->BeginApply());
  network_->SetBlackHole("b", "a", true);
  served->OnAnswerDropped([dropped = std::move(dropped)] { dropped.Set(Unit{}); });
  served->Reply(Payload{std::string(size_t{100} << 10, 'x'), {}});
  served.reset();
  network_->Cut("a", "b");
  network_->SetBlackHole("b", "a", false);
  const absl::Status status = call.reply().Wait().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "the answer could not be kept")) << status;
  EXPECT_TRUE(GetDetail(status)->fate_unknown);
  EXPECT_TRUE(taken_back.Wait().ok()) << taken_back.Wait().status();
}

TEST_F(LongLeaseTest, AnAnswerThatWasNotKeptIsTakenWithWhatItGives) {
  memory_ = MemoryAccount::Create(size_t{64} << 10, NewHeapAllocator());
  b_.reset();
  b_ = NewWorker("b", 1);
  AddPark(*b_, "test.park", MethodKind::kMutation);
  AddEcho(*b_);
  StartBoth();
  std::atomic<int> dropped{0};
  Call call = a_->agent->StartCall("b", Ask("test.park"), {});
  ServerCallPtr served = TakeParked();
  served->OnAnswerDropped([&] { ++dropped; });
  served->Reply(Payload{std::string(size_t{100} << 10, 'x'), {}});
  ASSERT_TRUE(call.reply().Wait().ok()) << call.reply().Wait().status();
  EXPECT_EQ(call.reply().Wait()->payload.header.size(), size_t{100} << 10);
  ASSERT_TRUE(Sync(*a_, "b", Ask("test.echo")).ok());
  EXPECT_EQ(dropped, 0);
}

TEST_F(LongLeaseTest, RPC_61_ALostReplyIsReplayedNotAppliedAgain) {
  StartBoth();
  Call call = a_->agent->StartCall("b", Ask("test.park"), {});
  ServerCallPtr served = TakeParked();
  EXPECT_TRUE(served->BeginApply());
  network_->Cut("a", "b");
  served->Reply(Payload{"once", {}});
  ASSERT_TRUE(call.reply().Wait().ok()) << call.reply().Wait().status();
  EXPECT_EQ(call.reply().Wait()->payload.header, "once");
  MutexLock lock(mutex_);
  EXPECT_TRUE(parked_.empty());  // the call did not run a second time
}

TEST_F(LongLeaseTest, CutsInTheMiddleOfManyMutationsLoseAndDoubleNothing) {
  StartBoth();
  std::vector<Call> calls;
  for (int i = 0; i < 500; ++i) {
    calls.push_back(a_->agent->StartCall("b", Ask("test.count"), {absl::ZeroDuration(), true}));
    if (i % 50 == 49) network_->Cut("a", "b");
  }
  for (const Call& call : calls)
    ASSERT_TRUE(call.reply().Wait().ok()) << call.reply().Wait().status();
  EXPECT_EQ(applied_, 500);
}

TEST_F(LongLeaseTest, ASilentPeerThatComesBackInTimeLosesNothing) {
  StartBoth();
  ASSERT_TRUE(Sync(*a_, "b", Ask("test.count")).ok());
  network_->SetBlackHole("a", "b", true);
  network_->SetBlackHole("b", "a", true);
  Call call = a_->agent->StartCall("b", Ask("test.count"), {absl::ZeroDuration(), true});
  // Until keepalive notices the loss.
  while (a_->agent->Peers()[0].connected) std::this_thread::yield();
  EXPECT_FALSE(call.reply().IsReady());
  network_->SetBlackHole("a", "b", false);
  network_->SetBlackHole("b", "a", false);
  ASSERT_TRUE(call.reply().Wait().ok()) << call.reply().Wait().status();
  EXPECT_EQ(applied_, 2);
}

TEST_F(AgentSessionsTest, APeerThatStopsAnsweringIsAnErrorAtEveryCaller) {
  times_.retry_window = absl::Seconds(1);
  a_.reset();
  a_ = NewWorker("a", 1);
  auto c = NewWorker("c", 1);
  StartBoth();
  ASSERT_TRUE(c->agent->Start("").ok());
  c->agent->AddPeer("b", b_address_);
  ASSERT_TRUE(a_->agent->Connect("b", {}).Wait().ok());
  ASSERT_TRUE(c->agent->Connect("b", {}).Wait().ok());
  const CallOptions endless{absl::ZeroDuration(), false};
  std::vector<Call> unknown, plain;
  for (TestWorker* caller : {a_.get(), c.get()}) {
    unknown.push_back(caller->agent->StartCall("b", Ask("test.park"), endless));
    plain.push_back(caller->agent->StartCall("b", Read("test.park_read"), endless));
  }
  std::vector<ServerCallPtr> served;
  for (int i = 0; i < 4; ++i) served.push_back(TakeParked());
  network_->SetBlackHole("*", "b", true);
  network_->SetBlackHole("b", "*", true);
  CallOptions hasty;
  hasty.timeout = absl::Milliseconds(50);
  const auto late = Sync(*a_, "b", Read("test.echo"), hasty).status();
  EXPECT_EQ(late.code(), absl::StatusCode::kDeadlineExceeded) << "a deadline needs no keepalive";
  for (const std::vector<Call>* calls : {&unknown, &plain}) {
    for (const Call& call : *calls) {
      const absl::Status status = call.reply().Wait().status();
      EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
      EXPECT_TRUE(absl::StrContains(status.message(), "b did not answer for 1s")) << status;
      EXPECT_EQ(GetDetail(status)->worker, "b");
      EXPECT_EQ(GetDetail(status)->fate_unknown, calls == &unknown);
    }
  }
}

TEST_F(AgentSessionsTest, ALeaseThatEndsReleasesAndIsToldAtTheNextContact) {
  Promise<PeerInfo> ended;
  Promise<absl::Status> lost;
  b_->agent->OnSessionEnded([ended](const PeerInfo& peer, uint64_t) { ended.Set(peer); });
  a_->agent->OnSessionLost(
      [lost](const PeerInfo&, uint64_t, const absl::Status& why) { lost.Set(absl::Status(why)); });
  StartBoth();
  ASSERT_TRUE(Sync(*a_, "b", Ask("test.echo")).ok());
  network_->SetRefuse("b", true);
  network_->Cut("a", "b");
  EXPECT_EQ(ended.future().Wait()->name, "a");
  network_->SetRefuse("b", false);
  EXPECT_EQ(lost.future().Wait()->code(), absl::StatusCode::kAborted);
  EXPECT_TRUE(Sync(*a_, "b", Ask("test.echo")).ok());
}

TEST_F(AgentSessionsTest, AReadOfWhatTheSessionHeldFailsWithItAndAnotherIsAskedAgain) {
  Promise<PeerInfo> ended;
  b_->agent->OnSessionEnded([ended](const PeerInfo& peer, uint64_t) { ended.Set(peer); });
  std::atomic<bool> told{false};
  a_->agent->OnSessionLost([&](const PeerInfo&, uint64_t, const absl::Status&) { told = true; });
  StartBoth();
  ASSERT_TRUE(Sync(*a_, "b", Ask("test.echo")).ok());
  network_->SetRefuse("b", true);
  network_->Cut("a", "b");
  const CallOptions patient{absl::ZeroDuration(), true};
  Request bound = Read("test.echo", "held");
  bound.session_bound = true;
  Call pull = a_->agent->StartCall("b", std::move(bound), patient);
  Call other = a_->agent->StartCall("b", Read("test.echo", "free"), patient);
  Promise<bool> told_before;
  pull.reply().OnReady([&](const absl::StatusOr<Reply>&) { told_before.Set(told.load()); });
  ASSERT_EQ(ended.future().Wait()->name, "a");
  network_->SetRefuse("b", false);
  const absl::Status status = pull.reply().Wait().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
  EXPECT_EQ(GetDetail(status)->worker, "b");
  EXPECT_TRUE(absl::StrContains(status.message(), IncarnationToString(a_->incarnation)));
  EXPECT_TRUE(absl::StrContains(status.message(), IncarnationToString(b_->incarnation)));
  EXPECT_TRUE(*told_before.future().Wait()) << "who asks again must find the session's end known";
  EXPECT_EQ(other.reply().Wait()->payload.header, "free");
}

TEST_F(AgentSessionsTest, EveryLayerHearsOfASessionsEnd) {
  Promise<PeerInfo> ended_first, ended_second;
  Promise<PeerInfo> lost_first, lost_second;
  for (const auto& told : {ended_first, ended_second}) {
    b_->agent->OnSessionEnded([told](const PeerInfo& peer, uint64_t) { told.Set(peer); });
  }
  for (const auto& told : {lost_first, lost_second}) {
    a_->agent->OnSessionLost(
        [told](const PeerInfo& peer, uint64_t, const absl::Status&) { told.Set(peer); });
  }
  StartBoth();
  ASSERT_TRUE(Sync(*a_, "b", Ask("test.echo")).ok());
  network_->SetRefuse("b", true);
  network_->Cut("a", "b");
  EXPECT_EQ(ended_first.future().Wait()->name, "a");
  EXPECT_EQ(ended_second.future().Wait()->name, "a");
  network_->SetRefuse("b", false);
  EXPECT_EQ(lost_first.future().Wait()->name, "b");
  EXPECT_EQ(lost_second.future().Wait()->name, "b");
}

// By its own settings, the caller may be silent for longer than its lease.
TEST_F(AgentSessionsTest, AnIdleSessionKeepsALeaseThatIsShorterThanTheCallersSilence) {
  times_.silence = absl::Minutes(1);
  times_.lease = absl::Seconds(6);
  a_.reset();
  b_.reset();
  a_ = NewWorker("a", 1);
  b_ = NewWorker("b", 1);
  AddEcho(*b_);
  StartBoth();
  ASSERT_TRUE(Sync(*a_, "b", Ask("test.echo")).ok());
  const uint64_t epoch = b_->agent->Peers()[0].epoch_here;
  EXPECT_NE(epoch, 0u);
  const absl::Time later = absl::Now() + 2 * times_.lease;
  while (absl::Now() < later) absl::SleepFor(absl::Milliseconds(10));
  EXPECT_EQ(b_->agent->Peers()[0].epoch_here, epoch);
}

TEST_F(AgentSessionsTest, ATakenNameIsRefusedAndTheHolderUnharmed) {
  StartBoth();
  ASSERT_TRUE(Sync(*a_, "b", Ask("test.echo")).ok());
  auto twin = NewWorker("a", 1, "another process");
  ASSERT_TRUE(twin->agent->Start("").ok());
  twin->agent->AddPeer("b", b_address_);
  EXPECT_EQ(twin->agent->Connect("b", {}).Wait().status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_TRUE(Sync(*a_, "b", Ask("test.echo")).ok());
}

TEST_F(AgentSessionsTest, RPC_03_ASilentHolderKeepsItsNameUntilItsLeaseEndsAndIsFencedThen) {
  times_.lease = absl::Seconds(2);
  b_ = NewWorker("b2");
  AddEcho(*b_);
  Promise<PeerInfo> ended;
  b_->agent->OnSessionEnded([ended](const PeerInfo& peer, uint64_t) { ended.Set(peer); });
  // Whether b2 has an open session of the first worker that was called "a".
  const auto holder_is_in = [this] {
    for (const PeerStatus& each : b_->agent->Peers())
      if (each.peer.incarnation == a_->incarnation && each.epoch_here != 0) return true;
    return false;
  };
  const std::string address = *b_->agent->Start("b2:0");
  ASSERT_TRUE(a_->agent->Start("").ok());
  a_->agent->AddPeer("b2", address);
  ASSERT_TRUE(Sync(*a_, "b2", Ask("test.echo")).ok());
  ASSERT_TRUE(holder_is_in());
  network_->SetBlackHole("a", "b2", true);
  network_->SetBlackHole("b2", "a", true);
  // Until keepalive notices the loss.
  while (b_->agent->Peers()[0].connected) std::this_thread::yield();
  auto successor = NewWorker("a", 1, "another process");
  ASSERT_TRUE(successor->agent->Start("").ok());
  successor->agent->AddPeer("b2", address);
  Future<PeerInfo> connected = successor->agent->Connect("b2", {absl::ZeroDuration(), true});
  ASSERT_TRUE(connected.Wait().ok()) << connected.Wait().status();
  EXPECT_FALSE(holder_is_in()) << "before the lease's end";
  EXPECT_EQ(ended.future().Wait()->incarnation, a_->incarnation);
  network_->SetBlackHole("a", "b2", false);
  network_->SetBlackHole("b2", "a", false);
  const auto former = Sync(*a_, "b2", Ask("test.echo"));
  EXPECT_EQ(former.status().code(), absl::StatusCode::kAborted) << former.status();
  EXPECT_TRUE(absl::StrContains(former.status().message(), "fenced"));
  EXPECT_TRUE(Sync(*successor, "b2", Ask("test.echo")).ok());
}

}  // namespace
}  // namespace psd::rpc
