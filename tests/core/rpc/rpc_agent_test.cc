#include "core/rpc/rpc_agent.h"

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/base/status.h"
#include "gtest/gtest.h"
#include "tests/core/rpc/agent_fixture.h"

namespace psd::rpc {
namespace {

using ServerCallPtr = std::shared_ptr<ServerCall>;

// Two workers: b listens, a knows it.
class RpcAgentTest : public AgentTest {
 protected:
  void SetUp() override {
    a_ = NewWorker("a", 1);
    b_ = NewWorker("b", 1);
    AddEcho(*a_);
    AddEcho(*b_);
    AddEcho(*b_, "test.slow_echo", RunsOn::kExecutor);
    b_->agent->RegisterMethod(
        {"test.park", MethodKind::kMutation, RunsOn::kCarrierThread, [this](ServerCallPtr call) {
           MutexLock lock(mutex_);
           parked_.push_back(std::move(call));
           parked_now_.NotifyAll();
         }});
    b_->agent->RegisterMethod(
        {"test.count", MethodKind::kMutation, RunsOn::kExecutor, [this](ServerCallPtr call) {
           if (call->BeginApply()) ++applied_;
           call->Reply(Payload{absl::StrCat(applied_.load()), {}});
         }});
  }
  void StartBoth() {
    ASSERT_TRUE(a_->agent->Start("").ok());
    auto address = b_->agent->Start("b:0");
    ASSERT_TRUE(address.ok()) << address.status();
    b_address_ = *address;
    a_->agent->AddPeer("b", b_address_);
  }
  ServerCallPtr TakeParked() {
    MutexLock lock(mutex_);
    while (parked_.empty()) parked_now_.Wait(mutex_);
    ServerCallPtr call = std::move(parked_.back());
    parked_.pop_back();
    return call;
  }
  void TearDown() override {
    {
      MutexLock lock(mutex_);
      parked_.clear();
    }
    a_.reset();
    b_.reset();
  }

  std::unique_ptr<TestWorker> a_, b_;
  std::string b_address_;
  std::atomic<int> applied_{0};
  Mutex mutex_;
  CondVar parked_now_;
  std::vector<ServerCallPtr> parked_ PSD_GUARDED_BY(mutex_);
};

TEST_F(RpcAgentTest, RPC_10_UnknownWorkerFailsAtTheCallAndNamesTheNearest) {
  StartBoth();
  a_->agent->AddPeer("owner0", "nowhere");
  Call call = a_->agent->StartCall("owner1", Ask("test.echo"), {});
  ASSERT_TRUE(call.reply().IsReady());
  EXPECT_EQ(call.reply().Wait().status().code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(absl::StrContains(call.reply().Wait().status().message(), "owner0"))
      << call.reply().Wait().status();
}

TEST_F(RpcAgentTest, RPC_12_RPC_59_EachOfAThousandCallsGetsItsOwnAnswer) {
  StartBoth();
  std::vector<Call> calls;
  for (int i = 0; i < 1000; ++i) {
    calls.push_back(a_->agent->StartCall(
        "b", Ask(i % 3 == 0 ? "test.slow_echo" : "test.echo", absl::StrCat(i)), {}));
  }
  for (int i = 0; i < 1000; ++i) {
    const auto& reply = calls[i].reply().Wait();
    ASSERT_TRUE(reply.ok()) << reply.status();
    EXPECT_EQ(reply->payload.header, absl::StrCat(i));
    EXPECT_EQ(reply->callee, (PeerInfo{"b", b_->incarnation}));
  }
}

TEST_F(RpcAgentTest, AThousandMutationsPassThroughASmallWindow) {
  times_.max_unacknowledged_answers = 8;
  a_ = NewWorker("a2", 1);
  StartBoth();
  std::vector<Call> calls;
  for (int i = 0; i < 1000; ++i) calls.push_back(a_->agent->StartCall("b", Ask("test.count"), {}));
  for (const Call& call : calls) ASSERT_TRUE(call.reply().Wait().ok());
  EXPECT_EQ(applied_, 1000);
  EXPECT_LE(b_->agent->Peers()[0].answers_remembered, 16u);
}

TEST_F(RpcAgentTest, RPC_13_CallsItself) {
  StartBoth();
  EXPECT_EQ(*Sync(*a_, "a", Ask("test.echo", "me")), "me");
}

TEST_F(RpcAgentTest, BuffersAndAttachmentsTravelBothWays) {
  b_->agent->RegisterMethod(
      {"test.attached", MethodKind::kRead, RunsOn::kCarrierThread, [](ServerCallPtr call) {
         Payload answer;
         answer.buffers = call->payload().buffers;
         call->Reply(std::move(answer), {{8, *call->attachment(7) + "!"}});
       }});
  StartBoth();
  Request request = Ask("test.attached");
  request.payload.buffers.push_back(Buffer::FromString("bytes"));
  request.attachments.push_back({7, "fork"});
  request.kind = MethodKind::kRead;
  Call call = a_->agent->StartCall("b", std::move(request), {});
  const auto& reply = call.reply().Wait();
  ASSERT_TRUE(reply.ok()) << reply.status();
  ASSERT_EQ(reply->payload.buffers.size(), 1u);
  EXPECT_EQ(reply->payload.buffers[0].view(), "bytes");
  EXPECT_EQ(*reply->attachment(8), "fork!");
}

TEST_F(RpcAgentTest, RPC_18_UnknownMethodIsAnErrorAndTheCalleeServesOn) {
  StartBoth();
  auto reply = Sync(*a_, "b", Ask("test.ecko"));
  EXPECT_EQ(reply.status().code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(absl::StrContains(reply.status().message(), "test.echo")) << reply.status();
  EXPECT_EQ(*Sync(*a_, "b", Ask("test.echo", "still")), "still");
}

TEST_F(RpcAgentTest, AFunctionWithoutAnAnswerIsAnsweredInternal) {
  StartBoth();
  Call call = a_->agent->StartCall("b", Ask("test.park"), {});
  TakeParked().reset();
  EXPECT_EQ(call.reply().Wait().status().code(), absl::StatusCode::kInternal);
}

TEST_F(RpcAgentTest, RPC_21_AFailedFutureGivesTheSameErrorTwice) {
  StartBoth();
  Call call = a_->agent->StartCall("b", Ask("nothing"), {});
  EXPECT_EQ(call.reply().Wait().status(), call.reply().Wait().status());
  EXPECT_TRUE(call.reply().IsReady());
}

TEST_F(RpcAgentTest, RPC_28_ACallbackMayCallAndWait) {
  StartBoth();
  auto second =
      a_->agent->StartCall("b", Ask("test.echo", "1"), {})
          .reply()
          .Then([this](const absl::StatusOr<Reply>& first) {
            return a_->agent->StartCall("b", Ask("test.echo", first->payload.header + "2"), {});
          });
  EXPECT_EQ(second.Wait()->reply().Wait()->payload.header, "12");
}

TEST_F(RpcAgentTest, RPC_32_TheTimeoutEndsTheCallAndTheCalleeLearnsOfIt) {
  StartBoth();
  CallOptions options;
  options.timeout = absl::Milliseconds(50);
  Call call = a_->agent->StartCall("b", Ask("test.park"), options);
  ServerCallPtr served = TakeParked();
  EXPECT_LE(served->deadline() - Clock::Steady().Now(), absl::Milliseconds(50));
  EXPECT_EQ(call.reply().Wait().status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(GetDetail(call.reply().Wait().status())->fate_unknown);
  Promise<Unit> cancelled;
  served->OnCancel([cancelled] { cancelled.Set(Unit{}); });
  ASSERT_TRUE(cancelled.future().Wait().ok());
  EXPECT_TRUE(served->cancelled());
  EXPECT_FALSE(served->BeginApply());
  served->Reply(Payload{"late", {}});  // dropped
  EXPECT_EQ(call.reply().Wait().status().code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(RpcAgentTest, RPC_35_ANegativeTimeoutIsRefused) {
  StartBoth();
  CallOptions options;
  options.timeout = absl::Seconds(-1);
  EXPECT_EQ(Sync(*a_, "b", Ask("test.echo"), options).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(RpcAgentTest, CancelReachesTheCallee) {
  StartBoth();
  Call call = a_->agent->StartCall("b", Ask("test.park"), {});
  ServerCallPtr served = TakeParked();
  Promise<Unit> cancelled;
  served->OnCancel([cancelled] { cancelled.Set(Unit{}); });
  call.Cancel();
  EXPECT_EQ(call.reply().Wait().status().code(), absl::StatusCode::kCancelled);
  ASSERT_TRUE(cancelled.future().Wait().ok());
  EXPECT_FALSE(served->BeginApply());
}

TEST_F(RpcAgentTest, OnceItAppliesACancelNoLongerStopsIt) {
  StartBoth();
  Call call = a_->agent->StartCall("b", Ask("test.park"), {});
  ServerCallPtr served = TakeParked();
  EXPECT_TRUE(served->BeginApply());
  call.Cancel();
  EXPECT_TRUE(GetDetail(call.reply().Wait().status())->fate_unknown);
  EXPECT_EQ(*Sync(*a_, "b", Ask("test.echo", "behind the cancel")), "behind the cancel");
  EXPECT_FALSE(served->cancelled());
}

TEST_F(RpcAgentTest, RPC_36_NestedCallsWithOneExecutorThreadEach) {
  // a -> b -> a -> b, every worker with one thread, which waits.
  a_->agent->RegisterMethod(
      {"test.down", MethodKind::kMutation, RunsOn::kExecutor, [this](ServerCallPtr call) {
         call->Reply(Payload{*Sync(*a_, "b", Ask("test.slow_echo", "deep")), {}});
       }});
  b_->agent->RegisterMethod(
      {"test.up", MethodKind::kMutation, RunsOn::kExecutor, [this](ServerCallPtr call) {
         call->Reply(Payload{*Sync(*b_, "a", Ask("test.down")), {}});
       }});
  StartBoth();
  EXPECT_EQ(*Sync(*a_, "b", Ask("test.up")), "deep");
}

TEST_F(RpcAgentTest, RPC_39_ParkedCallsDelayNobody) {
  StartBoth();
  std::vector<Call> parked;
  for (int i = 0; i < 200; ++i) parked.push_back(a_->agent->StartCall("b", Ask("test.park"), {}));
  EXPECT_EQ(*Sync(*a_, "b", Ask("test.echo", "through")), "through");
  for (int i = 0; i < 200; ++i) TakeParked()->Reply(Payload{});
  for (const Call& call : parked) EXPECT_TRUE(call.reply().Wait().ok());
}

TEST_F(RpcAgentTest, ACalleeMayCallATrainerThatDoesNotListen) {
  StartBoth();
  ASSERT_TRUE(a_->agent->Connect("b", {}).Wait().ok());
  EXPECT_EQ(*Sync(*b_, "a", Ask("test.echo", "back"), {absl::Seconds(60), true}), "back");
}

TEST_F(RpcAgentTest, TwoThatDoNotListenCannotMeet) {
  StartBoth();
  a_->agent->AddPeer("trainer1", "");
  auto reply = Sync(*a_, "trainer1", Ask("test.echo"));
  EXPECT_EQ(reply.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(absl::StrContains(reply.status().message(), "listen")) << reply.status();
}

TEST_F(RpcAgentTest, AnotherNameAtTheAddress) {
  StartBoth();
  a_->agent->AddPeer("c", b_address_);
  auto peer = a_->agent->Connect("c", {}).Wait();
  EXPECT_EQ(peer.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(absl::StrContains(peer.status().message(), "worker b answers"));
}

TEST_F(RpcAgentTest, NobodyListensFailsAtOnceUnlessTheCallWaits) {
  StartBoth();
  a_->agent->AddPeer("late", "late:7");
  EXPECT_EQ(Sync(*a_, "late", Ask("test.echo")).status().code(), absl::StatusCode::kUnavailable);
  Call waits = a_->agent->StartCall("late", Ask("test.echo", "hi"), {absl::Seconds(60), true});
  auto late = NewWorker("late");
  AddEcho(*late);
  ASSERT_TRUE(late->agent->Start("late:7").ok());
  ASSERT_TRUE(waits.reply().Wait().ok()) << waits.reply().Wait().status();
}

TEST_F(RpcAgentTest, RPC_58_ACallInFlightFailsWhenItsPeerDies) {
  StartBoth();
  Call call = a_->agent->StartCall("b", Ask("test.park"), {absl::ZeroDuration(), false});
  ServerCallPtr served = TakeParked();
  network_->Crash("b");
  EXPECT_EQ(call.reply().Wait().status().code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(GetDetail(call.reply().Wait().status())->fate_unknown);
}

TEST_F(RpcAgentTest, ARestartedCalleeAbortsWhatWasMeantForItsPredecessor) {
  Promise<absl::Status> lost;
  a_->agent->OnSessionLost([lost](const PeerInfo&, absl::Status why) { lost.Set(std::move(why)); });
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

TEST_F(RpcAgentTest, RPC_61_ALostReplyIsReplayedNotAppliedAgain) {
  StartBoth();
  Call call = a_->agent->StartCall("b", Ask("test.park"), {});
  ServerCallPtr served = TakeParked();
  EXPECT_TRUE(served->BeginApply());
  network_->Cut("a", "b");
  served->Reply(Payload{"once", {}});
  ASSERT_TRUE(call.reply().Wait().ok()) << call.reply().Wait().status();
  EXPECT_EQ(call.reply().Wait()->payload.header, "once");
  MutexLock lock(mutex_);
  EXPECT_TRUE(parked_.empty());  // no second run
}

TEST_F(RpcAgentTest, CutsInTheMiddleOfManyMutationsLoseAndDoubleNothing) {
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

TEST_F(RpcAgentTest, ASilentPeerThatComesBackInTimeLosesNothing) {
  StartBoth();
  ASSERT_TRUE(Sync(*a_, "b", Ask("test.count")).ok());
  network_->SetBlackHole("a", "b", true);
  network_->SetBlackHole("b", "a", true);
  Call call = a_->agent->StartCall("b", Ask("test.count"), {absl::ZeroDuration(), true});
  while (a_->agent->Peers()[0].connected) std::this_thread::yield();  // until keepalive notices
  EXPECT_FALSE(call.reply().IsReady());
  network_->SetBlackHole("a", "b", false);
  network_->SetBlackHole("b", "a", false);
  ASSERT_TRUE(call.reply().Wait().ok()) << call.reply().Wait().status();
  EXPECT_EQ(applied_, 2);
}

TEST_F(RpcAgentTest, ALeaseThatEndsReleasesAndIsToldAtTheNextContact) {
  Promise<PeerInfo> ended;
  Promise<absl::Status> lost;
  b_->agent->OnSessionEnded([ended](const PeerInfo& peer, uint64_t) { ended.Set(peer); });
  a_->agent->OnSessionLost([lost](const PeerInfo&, absl::Status why) { lost.Set(std::move(why)); });
  StartBoth();
  ASSERT_TRUE(Sync(*a_, "b", Ask("test.echo")).ok());
  network_->SetRefuse("b", true);
  network_->Cut("a", "b");
  EXPECT_EQ(ended.future().Wait()->name, "a");
  network_->SetRefuse("b", false);
  EXPECT_EQ(lost.future().Wait()->code(), absl::StatusCode::kAborted);
  EXPECT_TRUE(Sync(*a_, "b", Ask("test.echo")).ok());
}

TEST_F(RpcAgentTest, EveryLayerHearsOfASessionsEnd) {
  Promise<PeerInfo> ended_first, ended_second;
  Promise<PeerInfo> lost_first, lost_second;
  for (const auto& told : {ended_first, ended_second}) {
    b_->agent->OnSessionEnded([told](const PeerInfo& peer, uint64_t) { told.Set(peer); });
  }
  for (const auto& told : {lost_first, lost_second}) {
    a_->agent->OnSessionLost([told](const PeerInfo& peer, const absl::Status&) { told.Set(peer); });
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

// The caller's own times would let it be silent for longer than its lease.
TEST_F(RpcAgentTest, AnIdleSessionKeepsALeaseThatIsShorterThanTheCallersSilence) {
  times_.silence = absl::Minutes(1);
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

TEST_F(RpcAgentTest, ATakenNameIsRefusedAndTheHolderUnharmed) {
  StartBoth();
  ASSERT_TRUE(Sync(*a_, "b", Ask("test.echo")).ok());
  auto twin = NewWorker("a", 1, "another process");
  ASSERT_TRUE(twin->agent->Start("").ok());
  twin->agent->AddPeer("b", b_address_);
  EXPECT_EQ(twin->agent->Connect("b", {}).Wait().status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_TRUE(Sync(*a_, "b", Ask("test.echo")).ok());
}

TEST_F(RpcAgentTest, ShutdownReleasesAtOnceAndDrainsWhatRuns) {
  Promise<PeerInfo> ended;
  b_->agent->OnSessionEnded([ended](const PeerInfo& peer, uint64_t) { ended.Set(peer); });
  StartBoth();
  Call call = a_->agent->StartCall("b", Ask("test.park"), {});
  ServerCallPtr served = TakeParked();
  served->Reply(Payload{"drained", {}});
  a_->agent->Shutdown(absl::Seconds(60));
  EXPECT_TRUE(call.reply().Wait().ok());
  EXPECT_EQ(ended.future().Wait()->name, "a");
  EXPECT_EQ(Sync(*a_, "b", Ask("test.echo")).status().code(), absl::StatusCode::kCancelled);
  a_->agent->Shutdown(absl::Seconds(60));
}

class HoldingHook : public RequestHook {
 public:
  uint32_t tag() const override { return 7; }
  void BeforeRun(const ServerCallPtr& call, absl::AnyInvocable<void(absl::Status)> ready) override {
    ready(*call->attachment(7) == "good" ? absl::OkStatus()
                                         : absl::FailedPreconditionError("bad fork"));
  }
};

TEST_F(RpcAgentTest, AHookLetsARequestPassOrAnswersIt) {
  b_->agent->AddRequestHook(std::make_shared<HoldingHook>());
  StartBoth();
  Request good = Ask("test.count");
  good.attachments.push_back({7, "good"});
  EXPECT_EQ(*Sync(*a_, "b", std::move(good)), "1");
  Request bad = Ask("test.count");
  bad.attachments.push_back({7, "bad"});
  EXPECT_EQ(Sync(*a_, "b", std::move(bad)).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(applied_, 1);
}

}  // namespace
}  // namespace psd::rpc
