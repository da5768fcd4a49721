#include "core/rpc/rpc_agent.h"

#include <atomic>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/base/status.h"
#include "core/carrier/carrier.h"
#include "gtest/gtest.h"
#include "tests/core/rpc/agent_pair.h"

namespace psd::rpc {
namespace {

// No test is about the ends of links and sessions that nobody hears.
class RpcAgentTest : public AgentPairTest {
 protected:
  RpcAgentTest() { times_.lease = times_.silence = absl::Minutes(5); }
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

TEST_F(RpcAgentTest, RPC_22_ASecondAnswerIsNoAnswer) {
  StartBoth();
  Call call = a_->agent->StartCall("b", Ask("test.park"), {});
  ServerCallPtr served = TakeParked();
  served->Reply(Payload{"first", {}});
  served->Reply(Payload{"second", {}});
  EXPECT_EQ(call.reply().Wait()->payload.header, "first");
  EXPECT_EQ(*Sync(*a_, "b", Ask("test.echo", "behind both")), "behind both");
  EXPECT_EQ(call.reply().Wait()->payload.header, "first");
}

TEST_F(RpcAgentTest, RPC_23_AChainOfTwentyContinuationsKeepsItsOrder) {
  StartBoth();
  Call call = a_->agent->StartCall("b", Ask("test.echo", "x"), {});
  Future<std::string> last =
      call.reply().Then([](const absl::StatusOr<Reply>& reply) { return reply->payload.header; });
  for (int i = 0; i < 20; ++i) {
    last = last.Then(
        [i](const absl::StatusOr<std::string>& so_far) { return absl::StrCat(*so_far, ",", i); });
  }
  EXPECT_EQ(*last.Wait(), "x,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19");
  EXPECT_EQ(call.reply().Wait()->payload.header, "x");
}

TEST_F(RpcAgentTest, RPC_24_EveryContinuationOfOneCallRunsOnceWithAResultOfItsOwn) {
  StartBoth();
  Call call = a_->agent->StartCall("b", Ask("test.park"), {});
  std::atomic<int> runs{0};
  std::vector<Future<int>> results;
  const auto add = [&](int i) {
    results.push_back(call.reply().Then([&runs, i](const absl::StatusOr<Reply>&) {
      ++runs;
      return i;
    }));
  };
  for (int i = 0; i < 5; ++i) add(i);
  TakeParked()->Reply(Payload{});
  ASSERT_TRUE(call.reply().Wait().ok());
  for (int i = 5; i < 10; ++i) add(i);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(*results[i].Wait(), i);
  EXPECT_EQ(runs, 10);
}

TEST_F(RpcAgentTest, RPC_25_AContinuationSeesTheErrorAndMaySwallowOrReplaceIt) {
  StartBoth();
  Call call = a_->agent->StartCall("b", Ask("nothing"), {});
  Future<int> swallowed = call.reply().Then(
      [](const absl::StatusOr<Reply>& reply) { return absl::IsNotFound(reply.status()) ? 7 : 0; });
  Future<int> replaced =
      call.reply().Then([](const absl::StatusOr<Reply>& reply) -> absl::StatusOr<int> {
        return absl::DataLossError(absl::StrCat("because ", reply.status().message()));
      });
  EXPECT_EQ(*swallowed.Wait(), 7);
  EXPECT_EQ(replaced.Wait().status().code(), absl::StatusCode::kDataLoss);
  EXPECT_TRUE(absl::StrContains(replaced.Wait().status().message(), "no method"));
  EXPECT_EQ(call.reply().Wait().status().code(), absl::StatusCode::kNotFound);
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
  ASSERT_TRUE(Sync(*a_, "b", Ask("test.echo")).ok());
  CallOptions options;
  options.timeout = absl::Seconds(2);
  Call call = a_->agent->StartCall("b", Ask("test.park"), options);
  ServerCallPtr served = TakeParked();
  EXPECT_LE(served->deadline() - Clock::Steady().Now(), options.timeout);
  EXPECT_EQ(call.reply().Wait().status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(GetDetail(call.reply().Wait().status())->fate_unknown);
  Promise<Unit> cancelled;
  served->OnCancel([cancelled] { cancelled.Set(Unit{}); });
  ASSERT_TRUE(cancelled.future().Wait().ok());
  EXPECT_TRUE(served->cancelled());
  EXPECT_FALSE(served->BeginApply());
  served->Reply(Payload{"late", {}});  // the caller drops it
  EXPECT_EQ(call.reply().Wait().status().code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(RpcAgentTest, RPC_32_ACallThatIsGivenUpAtItsDeadlineIsLateAndNotCancelled) {
  StartBoth();
  ASSERT_TRUE(Sync(*a_, "b", Ask("test.echo")).ok());
  // The caller's timers are late.
  Promise<Unit> released;
  a_->timers->RunAt(Clock::Steady().Now(),
                    [until = released.future()] { ASSERT_TRUE(until.Wait().ok()); });
  CallOptions options;
  options.timeout = absl::Seconds(1);
  Call call = a_->agent->StartCall("b", Ask("test.park"), options);
  ServerCallPtr served = TakeParked();
  while (!served->cancelled()) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_FALSE(served->BeginApply());
  served->Reply(absl::CancelledError("cancelled before it began"));
  const absl::Status status = call.reply().Wait().status();
  released.Set(Unit{});
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
}

TEST_F(RpcAgentTest, RPC_33_AChangedTimeoutIsThatOfLaterCalls) {
  StartBoth();
  CallOptions options;
  EXPECT_EQ(options.timeout, absl::Seconds(60));
  options.timeout = absl::ZeroDuration();
  Call patient = a_->agent->StartCall("b", Ask("test.park"), options);
  EXPECT_EQ(TakeParked()->deadline(), absl::InfiniteFuture());
  EXPECT_EQ(patient.reply().Wait().status().code(), absl::StatusCode::kInternal);  // abandoned
  patient = a_->agent->StartCall("b", Ask("test.park"), options);
  ServerCallPtr served = TakeParked();
  options.timeout = absl::Milliseconds(20);
  EXPECT_EQ(Sync(*a_, "b", Ask("test.park"), options).status().code(),
            absl::StatusCode::kDeadlineExceeded);
  EXPECT_FALSE(patient.reply().IsReady());
  served->Reply(Payload{"in the end", {}});
  EXPECT_EQ(patient.reply().Wait()->payload.header, "in the end");
}

TEST_F(RpcAgentTest, RPC_34_AfterTheTimeoutTheLateAnswerOfAReadIsDropped) {
  StartBoth();
  ASSERT_TRUE(Sync(*a_, "b", Ask("test.echo")).ok());
  CallOptions options;
  options.timeout = absl::Seconds(2);
  Call call = a_->agent->StartCall("b", Read("test.park_read"), options);
  ServerCallPtr served = TakeParked();
  EXPECT_EQ(call.reply().Wait().status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_FALSE(GetDetail(call.reply().Wait().status())->fate_unknown) << "a read has no fate";
  Promise<Unit> cancelled;
  served->OnCancel([cancelled] { cancelled.Set(Unit{}); });
  ASSERT_TRUE(cancelled.future().Wait().ok()) << "the callee is told";
  served->Reply(Payload{"late", {}});
  EXPECT_EQ(*Sync(*a_, "b", Ask("test.echo", "behind it")), "behind it");
  EXPECT_EQ(call.reply().Wait().status().code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(RpcAgentTest, AnAnswerBeyondTheCarriersLimitIsAClearErrorAndTheCalleeServesOn) {
  limits_.max_message_bytes = 1 << 20;
  b_.reset();
  b_ = NewWorker("b");
  AddEcho(*b_);
  for (MethodKind kind : {MethodKind::kRead, MethodKind::kMutation}) {
    b_->agent->RegisterMethod({kind == MethodKind::kRead ? "test.read_big" : "test.make_big", kind,
                               RunsOn::kCarrierThread, [](ServerCallPtr call) {
                                 Payload answer;
                                 answer.buffers.push_back(
                                     Buffer::FromString(std::string((1 << 20) + 1, 'x')));
                                 call->BeginApply();
                                 call->Reply(std::move(answer));
                               }});
  }
  StartBoth();
  for (const Request& ask : {Read("test.read_big"), Ask("test.make_big")}) {
    const absl::Status status = Sync(*a_, "b", ask).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "1048576")) << status;
    ASSERT_TRUE(GetDetail(status).has_value());
    EXPECT_EQ(GetDetail(status)->worker, "b");
    EXPECT_FALSE(GetDetail(status)->remedy.empty());
    EXPECT_EQ(GetDetail(status)->fate_unknown, ask.kind != MethodKind::kRead);
  }
  EXPECT_EQ(*Sync(*a_, "b", Ask("test.echo", "still")), "still");
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

TEST_F(RpcAgentTest, WhatAnAnswerGaveIsTakenBackWhenItsCallerNoLongerTakesIt) {
  StartBoth();
  std::atomic<int> dropped{0};
  Call taken = a_->agent->StartCall("b", Ask("test.park"), {});
  ServerCallPtr served = TakeParked();
  served->OnAnswerDropped([&] { dropped += 100; });
  served->Reply(Payload{});
  ASSERT_TRUE(taken.reply().Wait().ok());
  taken.Cancel();
  Call call = a_->agent->StartCall("b", Ask("test.park"), {});
  served = TakeParked();
  EXPECT_TRUE(served->BeginApply());
  served->OnAnswerDropped([&] { ++dropped; });
  served->OnAnswerDropped([&] { ++dropped; });
  call.Cancel();
  ASSERT_TRUE(Sync(*a_, "b", Ask("test.echo", "behind the cancel")).ok());
  served->Reply(Payload{});
  EXPECT_EQ(dropped, 2);
}

TEST_F(RpcAgentTest, WhatAnAnswerGaveIsTakenBackWhenItCannotBeSent) {
  StartBoth();
  for (const char* method : {"test.park", "test.park_read"}) {
    Call call = a_->agent->StartCall("b", Ask(method), {});
    ServerCallPtr served = TakeParked();
    Promise<Unit> dropped;
    const Future<Unit> taken_back = dropped.future();
    served->OnAnswerDropped([dropped = std::move(dropped)] { dropped.Set(Unit{}); });
    const size_t too_much = carrier::Limits().max_header_bytes;
    served->Reply(Payload{std::string(too_much, 'x'), {}});
    served.reset();
    const absl::Status status = call.reply().Wait().status();
    EXPECT_TRUE(absl::StrContains(status.message(), "the answer cannot be sent")) << status;
    EXPECT_TRUE(taken_back.Wait().ok()) << taken_back.Wait().status();
  }
}

TEST_F(RpcAgentTest, WhatAnAnswerGaveIsTakenBackWhenItsCallerHasNoRoomForIt) {
  rules_.lacks_room = [](const carrier::Message& message) {
    return message.buffers.empty() ? absl::OkStatus() : absl::ResourceExhaustedError("no memory");
  };
  a_.reset();
  a_ = NewWorker("a", 1);
  StartBoth();
  Promise<Unit> dropped;
  for (const MethodKind kind : {MethodKind::kRead, MethodKind::kMutation}) {
    const bool mutation = kind == MethodKind::kMutation;
    Call call = a_->agent->StartCall("b", mutation ? Ask("test.park") : Read("test.park_read"), {});
    ServerCallPtr served = TakeParked();
    EXPECT_TRUE(served->BeginApply());
    served->OnAnswerDropped([dropped, mutation] {
      if (mutation) dropped.Set(Unit{});
    });
    served->Reply(Payload{"header", {Buffer::FromString("bytes")}});
    const absl::Status status = call.reply().Wait().status();
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
    for (const char* part : {"b has answered", "a cannot take the answer", "no memory"})
      EXPECT_TRUE(absl::StrContains(status.message(), part)) << status;
    EXPECT_EQ(absl::StrContains(status.message(), "may have been applied"), mutation) << status;
    EXPECT_EQ(GetDetail(status)->fate_unknown, mutation);
    EXPECT_EQ(GetDetail(status)->worker, "a");
  }
  EXPECT_TRUE(dropped.future().Wait().ok());
  EXPECT_EQ(*Sync(*a_, "b", Ask("test.count")), "1") << "calls go on";
}

TEST_F(RpcAgentTest, RPC_36_NestedCallsWithOneExecutorThreadEach) {
  // The calls go a -> b -> a -> b, and the only thread of each worker waits.
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

TEST_F(RpcAgentTest, ReadsBeyondTheBoundAreRefusedWithALimitAndARemedy) {
  times_.max_running_reads = 3;
  b_.reset();
  b_ = NewWorker("b");
  AddPark(*b_, "test.park_read", MethodKind::kRead);
  StartBoth();
  const Request read = Read("test.park_read");
  std::vector<Call> calls;
  std::vector<ServerCallPtr> served;
  for (int i = 0; i < 3; ++i) {
    calls.push_back(a_->agent->StartCall("b", read, {}));
    served.push_back(TakeParked());  // calls of several threads may overtake each other
  }
  const auto refused = Sync(*a_, "b", read);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted) << refused.status();
  EXPECT_TRUE(absl::StrContains(refused.status().message(), "3 reads of a"));
  EXPECT_TRUE(absl::StrContains(refused.status().message(), "max_running_reads"));
  EXPECT_EQ(GetDetail(refused.status())->worker, "b");
  for (const ServerCallPtr& call : served) call->Reply(Payload{});
  for (const Call& call : calls) EXPECT_TRUE(call.reply().Wait().ok());
}

TEST_F(RpcAgentTest, RPC_57_ShutdownReleasesAtOnceAndDrainsWhatRuns) {
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

}  // namespace
}  // namespace psd::rpc
