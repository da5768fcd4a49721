#include "core/rpc/caller_session.h"

#include <memory>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/base/ids.h"
#include "core/base/remedy.h"
#include "core/base/status.h"
#include "core/rpc/header.h"
#include "core/rpc/session_types.h"
#include "gtest/gtest.h"

namespace psd::rpc {
namespace {

constexpr absl::Time kNow = absl::UnixEpoch();
constexpr LinkId kLink = 1;

// The caller session of "a" on "b". "b" has answered the greeting.
class CallerSessionTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Connect(3, /*resumed=*/false);
    actions_.clear();
  }
  // Connects a link on which "b" answers the greeting.
  void Connect(uint64_t epoch, bool resumed, Incarnation incarnation = 7) {
    session_.OnLink(kNow, kLink, actions_);
    Welcome(kLink, epoch, resumed, incarnation);
  }
  // Requires: a link was opened, and the greeting on it has no answer.
  void Welcome(LinkId link, uint64_t epoch, bool resumed, Incarnation incarnation) {
    Header welcome;
    welcome.kind = MessageKind::kWelcome;
    welcome.name = "b";
    welcome.incarnation = incarnation;
    welcome.epoch = epoch;
    welcome.resumed = resumed;
    welcome.sequence = ++hellos_;
    session_.OnWelcome(kNow, link, welcome, actions_);
  }
  void Ask(CallId id, absl::Time deadline = absl::InfiniteFuture(),
           MethodKind kind = MethodKind::kMutation) {
    CallSpec spec;
    spec.kind = kind;
    spec.deadline = deadline;
    spec.body = std::make_shared<Opaque>();
    session_.Start(kNow, id, std::move(spec), actions_);
  }
  // Starts a call that only that incarnation of "b" may run.
  void AskOnly(CallId id, Incarnation only, bool session_bound = false) {
    CallSpec spec;
    spec.only_incarnation = only;
    spec.session_bound = session_bound;
    spec.body = std::make_shared<Opaque>();
    session_.Start(kNow, id, std::move(spec), actions_);
  }
  std::vector<RequestMeta> Requests() const {
    std::vector<RequestMeta> requests;
    for (const Action& action : actions_) {
      if (auto* sent = std::get_if<SendRequestAction>(&action)) requests.push_back(sent->meta);
    }
    return requests;
  }
  // The statuses of the calls that are over.
  std::vector<absl::Status> Statuses() const {
    std::vector<absl::Status> statuses;
    for (const Action& action : actions_) {
      if (auto* over = std::get_if<CompleteAction>(&action)) statuses.push_back(over->status);
    }
    return statuses;
  }
  // Their codes.
  std::vector<absl::StatusCode> Outcomes() const {
    std::vector<absl::StatusCode> outcomes;
    for (const absl::Status& status : Statuses()) outcomes.push_back(status.code());
    return outcomes;
  }
  // The calls that the session tells the peer to stop.
  std::vector<CallId> Cancelled() const {
    std::vector<CallId> ids;
    for (const Action& action : actions_) {
      auto* sent = std::get_if<std::unique_ptr<SendControlAction>>(&action);
      if (sent != nullptr && (*sent)->header.kind == MessageKind::kCancel) {
        ids.push_back((*sent)->header.call_id);
      }
    }
    return ids;
  }

  SessionOptions options_;
  uint64_t greetings_ = 0;  // counted by the worker
  CallerSession session_{options_, {"a", 1}, "b", 0, greetings_};
  Actions actions_;
  uint64_t hellos_ = 0;
};

using Codes = std::vector<absl::StatusCode>;

TEST_F(CallerSessionTest, RPC_61_EveryMutationHasANumberAndAnAnswerIsAcknowledgedByTheNext) {
  Ask(1);
  session_.OnAnswer({1, 3, 0}, 10, actions_);
  Ask(2);
  const std::vector<RequestMeta> sent = Requests();
  ASSERT_EQ(sent.size(), 2u);
  EXPECT_EQ(sent[0].sequence, 1u);
  EXPECT_EQ(sent[0].ack.watermark, 0u);
  EXPECT_EQ(sent[1].sequence, 2u);
  EXPECT_EQ(sent[1].ack.watermark, 1u);
}

TEST_F(CallerSessionTest, ARequestForWhichThisWorkerHasNoMemoryNamesThisWorker) {
  const absl::Status no_memory =
      WithRemedy(absl::ResourceExhaustedError("no memory for 8 bytes"), "raise the budget");
  for (CallId id : {1, 2}) Ask(id);
  session_.OnSendRefused(1, no_memory, actions_);
  session_.OnSendRefused(2, absl::InvalidArgumentError("b takes 7 bytes at most"), actions_);
  const std::vector<absl::Status> refused = Statuses();
  ASSERT_EQ(refused.size(), 2u);
  EXPECT_EQ(refused[0].code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(refused[0].message(),
            "a, this worker, cannot queue a request to b: no memory for 8 bytes; raise the budget");
  EXPECT_EQ(GetDetail(refused[0]), (ErrorDetail{"a", "", "raise the budget", false}));
  EXPECT_EQ(GetDetail(refused[1])->worker, "b") << "whose limit it is";
}

TEST_F(CallerSessionTest, AnAnswerOfAnEarlierSessionDoesNotCount) {
  Ask(1, absl::InfiniteFuture(), MethodKind::kRead);
  session_.OnLinkClosed(kNow, kLink, actions_);
  Connect(4, /*resumed=*/false);
  ASSERT_EQ(Requests().size(), 2u) << "the read is sent again in the new session";
  EXPECT_EQ(session_.OnAnswer({1, 3, 0}, 10, actions_), nullptr);
  EXPECT_NE(session_.OnAnswer({1, 4, 0}, 10, actions_), nullptr);
}

// The peer takes back what the answer to the earlier attempt gave.
TEST_F(CallerSessionTest, AnAnswerThatGivesSomethingIsTakenOnlyForTheLatestAttempt) {
  Ask(1, absl::InfiniteFuture(), MethodKind::kRead);
  session_.OnLinkClosed(kNow, kLink, actions_);
  Connect(3, /*resumed=*/true);
  ASSERT_EQ(Requests().size(), 2u);
  EXPECT_EQ(Requests()[0].attempt, 1u);
  EXPECT_EQ(Requests()[1].attempt, 2u);
  EXPECT_EQ(session_.OnAnswer({1, 3, 1}, 10, actions_), nullptr);
  EXPECT_NE(session_.OnAnswer({1, 3, 2}, 10, actions_), nullptr);
}

TEST_F(CallerSessionTest, AnAnswerThatGivesNothingEndsTheOtherAttempts) {
  Ask(1, absl::InfiniteFuture(), MethodKind::kRead);
  session_.OnLinkClosed(kNow, kLink, actions_);
  Connect(3, /*resumed=*/true);
  EXPECT_NE(session_.OnAnswer({1, 3, 0}, 10, actions_), nullptr);
  EXPECT_EQ(Cancelled(), std::vector<CallId>{1}) << "the second may give something";
}

TEST_F(CallerSessionTest, AnErrorInThePlaceOfAnAnswerThatWasNotKeptIsNoAcknowledgement) {
  Ask(1);
  EXPECT_NE(session_.OnAnswer({1, 3, 1}, 10, actions_), nullptr);
  EXPECT_EQ(Cancelled(), std::vector<CallId>{1}) << "the callee takes back what the answer gave";
  Ask(2);
  EXPECT_EQ(Requests().back().ack.watermark, 0u);
  session_.OnCancelled(1, actions_);
  Ask(3);
  EXPECT_EQ(Requests().back().ack.watermark, 1u);
}

TEST_F(CallerSessionTest, ThePeerIsToldWhichCallsAreOver) {
  Ask(4);
  Ask(5, absl::InfiniteFuture(), MethodKind::kRead);
  const auto told = [&] {
    session_.Announce(actions_);
    return std::get<std::unique_ptr<SendControlAction>>(actions_.back())->header.call_id;
  };
  EXPECT_EQ(told(), 4u);
  session_.OnAnswer({4, 3, 0}, 10, actions_);
  EXPECT_EQ(told(), 5u);
  session_.Cancel(5, actions_);
  EXPECT_EQ(told(), 5u) << "until the peer has cancelled it";
  session_.OnCancelled(5, actions_);
  EXPECT_EQ(told(), 6u);
}

TEST_F(CallerSessionTest, ACallForOneSessionNeverRunsInAnother) {
  CallSpec spec;
  spec.kind = MethodKind::kRead;
  spec.only_epoch = 3;
  spec.body = std::make_shared<Opaque>();
  session_.Start(kNow, 1, spec, actions_);
  ASSERT_EQ(Requests().size(), 1u);
  session_.OnLinkClosed(kNow, kLink, actions_);
  Connect(4, /*resumed=*/false);
  EXPECT_EQ(Outcomes(), Codes{absl::StatusCode::kAborted});
  session_.Start(kNow, 2, spec, actions_);
  EXPECT_EQ(Outcomes(), (Codes{absl::StatusCode::kAborted, absl::StatusCode::kAborted}));
  EXPECT_EQ(Requests().size(), 1u);
}

TEST_F(CallerSessionTest, ACallForASessionThatHasEndedSaysHow) {
  CallSpec spec;
  spec.only_incarnation = 7;
  spec.only_epoch = 3;
  spec.body = std::make_shared<Opaque>();
  session_.OnLinkClosed(kNow, kLink, actions_);
  Connect(4, /*resumed=*/false);
  session_.Start(kNow, 1, spec, actions_);
  ASSERT_EQ(Outcomes(), Codes{absl::StatusCode::kAborted});
  EXPECT_TRUE(absl::StrContains(Statuses()[0].message(),
                                absl::StrCat("incarnation ", IncarnationToString(7), " of b")))
      << Statuses()[0];
  Header leaving;
  leaving.epoch = 4;
  leaving.callee_incarnation = 7;
  session_.OnLeaving(kLink, leaving, actions_);
  session_.Start(kNow, 2, spec, actions_);
  EXPECT_EQ(Outcomes(), (Codes{absl::StatusCode::kAborted, absl::StatusCode::kUnavailable}));
}

TEST_F(CallerSessionTest, TheLossOfASessionNamesItsEpoch) {
  session_.OnLinkClosed(kNow, kLink, actions_);
  Connect(4, /*resumed=*/false);
  std::vector<uint64_t> lost;
  for (const Action& action : actions_) {
    if (auto* session = std::get_if<SessionLostAction>(&action)) lost.push_back(session->epoch);
  }
  EXPECT_EQ(lost, std::vector<uint64_t>{3});
}

TEST_F(CallerSessionTest, RPC_32_RPC_34_TheTimeoutEndsTheCallAndTheCalleeIsTold) {
  Ask(1, kNow + absl::Seconds(1));
  session_.Tick(kNow + absl::Milliseconds(999), actions_);
  EXPECT_TRUE(Outcomes().empty());
  session_.Tick(kNow + absl::Seconds(1), actions_);
  EXPECT_EQ(Outcomes(), Codes{absl::StatusCode::kDeadlineExceeded});
  EXPECT_EQ(Cancelled(), std::vector<CallId>{1});
  EXPECT_EQ(session_.OnAnswer({1, 3, 0}, 10, actions_), nullptr) << "it comes too late";
}

TEST_F(CallerSessionTest, RPC_34_ACallThatIsCancelledIsCancelledThere) {
  Ask(1);
  Ask(2);
  session_.Cancel(1, actions_);
  EXPECT_EQ(Outcomes(), Codes{absl::StatusCode::kCancelled});
  EXPECT_EQ(Cancelled(), std::vector<CallId>{1});
}

TEST_F(CallerSessionTest, ACallThatWasGivenUpIsNotAcknowledgedUntilThePeerHasCancelledIt) {
  Ask(1);
  session_.OnLinkClosed(kNow, kLink, actions_);
  session_.Cancel(1, actions_);
  EXPECT_TRUE(Cancelled().empty()) << "there is no link";
  Connect(3, /*resumed=*/true);
  EXPECT_EQ(Cancelled(), std::vector<CallId>{1});
  Ask(2);
  EXPECT_EQ(Requests().back().ack.watermark, 0u);
  session_.OnCancelled(1, actions_);
  Ask(3);
  EXPECT_EQ(Requests().back().ack.watermark, 1u);
}

TEST_F(CallerSessionTest, AReadThatWasGivenUpWhileTheLinkWasDownIsCancelledAfterwards) {
  Ask(1, absl::InfiniteFuture(), MethodKind::kRead);
  session_.OnLinkClosed(kNow, kLink, actions_);
  session_.Cancel(1, actions_);
  Connect(3, /*resumed=*/true);
  EXPECT_EQ(Cancelled(), std::vector<CallId>{1});
  session_.OnCancelled(1, actions_);
  session_.OnLinkClosed(kNow, kLink, actions_);
  Connect(3, /*resumed=*/true);
  EXPECT_EQ(Cancelled().size(), 1u) << "the peer knows";
}

TEST_F(CallerSessionTest, AKeepaliveThatOpensTheWindowLetsThroughWhoWaitsForIt) {
  options_.max_unacknowledged_answers = 8;
  for (CallId id = 1; id <= 9; ++id) Ask(id);
  session_.OnAnswer({1, 3, 0}, 10, actions_);
  EXPECT_EQ(Requests().size(), 8u) << "the peer remembers an answer, and seven calls run there";
  session_.Announce(actions_);
  EXPECT_EQ(Requests().size(), 9u);
}

TEST_F(CallerSessionTest, WhatWaitsForTheWindowIsNotSentWhenAllFail) {
  options_.max_unacknowledged_answers = 2;
  for (CallId id = 1; id <= 4; ++id) Ask(id);
  session_.CompleteAll(absl::CancelledError("shuts down"), actions_);
  EXPECT_EQ(Requests().size(), 2u);
  EXPECT_EQ(Outcomes(), Codes(4, absl::StatusCode::kCancelled));
}

TEST_F(CallerSessionTest, RPC_61_AMutationIsSentAgainInItsSessionUnderItsNumber) {
  Ask(1);
  session_.OnLinkClosed(kNow, kLink, actions_);
  Connect(3, /*resumed=*/true);
  const std::vector<RequestMeta> sent = Requests();
  ASSERT_EQ(sent.size(), 2u);
  EXPECT_EQ(sent[1].sequence, sent[0].sequence);
  EXPECT_TRUE(Outcomes().empty());
}

TEST_F(CallerSessionTest, TheFirstCallAfterAnOrderlyStopIsForWhoeverAnswersNext) {
  session_.set_address("b:1");
  Header leaving;
  leaving.epoch = 3;
  leaving.callee_incarnation = 7;
  session_.OnLeaving(kLink, leaving, actions_);
  EXPECT_EQ(session_.state(), CallerSession::State::kLeft);
  const auto* lost = std::get_if<SessionLostAction>(&actions_.back());
  ASSERT_NE(lost, nullptr);
  EXPECT_TRUE(absl::StrContains(lost->reason.message(), "b has stopped in order")) << lost->reason;
  EXPECT_FALSE(GetDetail(lost->reason)->remedy.empty());
  session_.OnLinkClosed(kNow, kLink, actions_);
  Ask(1);
  Connect(1, /*resumed=*/false, /*incarnation=*/8);
  EXPECT_TRUE(Outcomes().empty());
  ASSERT_EQ(Requests().size(), 1u);
  EXPECT_EQ(Requests()[0].callee_incarnation, 8u);
}

TEST_F(CallerSessionTest, ACallThatWaitsWhileItsSessionIsOpenIsNotForARestartedPeer) {
  session_.set_address("b:1");
  session_.OnLinkClosed(kNow, kLink, actions_);
  Ask(1);
  Connect(1, /*resumed=*/false, /*incarnation=*/8);
  EXPECT_EQ(Outcomes(), std::vector<absl::StatusCode>{absl::StatusCode::kAborted});
  EXPECT_TRUE(Requests().empty());
}

// Others may have told this worker of the peer's new incarnation before the peer itself does.
TEST_F(CallerSessionTest, ACallForTheRestartedPeerWaitsForItsWelcome) {
  session_.set_address("b:1");
  session_.OnLinkClosed(kNow, kLink, actions_);
  AskOnly(1, 8);
  AskOnly(2, 8, /*session_bound=*/true);
  AskOnly(3, 7);
  AskOnly(4, 9);
  EXPECT_TRUE(Outcomes().empty());
  Connect(1, /*resumed=*/false, /*incarnation=*/8);
  EXPECT_EQ(Outcomes(), Codes({absl::StatusCode::kAborted, absl::StatusCode::kAborted}));
  ASSERT_EQ(Requests().size(), 2u);
  EXPECT_EQ(Requests()[0].call_id, 1u);
  EXPECT_EQ(Requests()[1].call_id, 2u);
  EXPECT_EQ(Requests()[1].callee_incarnation, 8u);
}

TEST_F(CallerSessionTest, ACallForTheRestartedPeerMayBeStartedWhileItIsGreeted) {
  session_.OnLink(kNow, kLink + 1, actions_);  // opened by the new incarnation
  AskOnly(1, 8);
  EXPECT_TRUE(Outcomes().empty());
  Welcome(kLink + 1, 1, /*resumed=*/false, /*incarnation=*/8);
  EXPECT_TRUE(Outcomes().empty());
  ASSERT_EQ(Requests().size(), 1u);
  EXPECT_EQ(Requests()[0].callee_incarnation, 8u);
}

// A process that was stopped comes back after all, and has lost its session here.
TEST_F(CallerSessionTest, ACallForAnotherIncarnationThanTheOneThatComesBackSaysSo) {
  session_.set_address("b:1");
  session_.OnLinkClosed(kNow, kLink, actions_);
  AskOnly(1, 8);
  Connect(4, /*resumed=*/false, /*incarnation=*/7);
  ASSERT_EQ(Outcomes(), Codes{absl::StatusCode::kAborted});
  EXPECT_TRUE(absl::StrContains(Statuses()[0].message(), "the call was for incarnation"))
      << Statuses()[0];
  EXPECT_TRUE(Requests().empty());
}

TEST_F(CallerSessionTest, ACallForARestartedPeerThatDoesNotAnswerFails) {
  session_.set_address("b:1");
  session_.OnLinkClosed(kNow, kLink, actions_);
  AskOnly(1, 8);
  session_.Tick(kNow + options_.retry_window, actions_);
  EXPECT_EQ(Outcomes(), Codes{absl::StatusCode::kUnavailable});
  AskOnly(2, 8);
  session_.OnDialFailed(kNow, /*refused=*/true, absl::UnavailableError("refused"), actions_);
  EXPECT_EQ(Outcomes(), Codes({absl::StatusCode::kUnavailable, absl::StatusCode::kUnavailable}));
}

TEST_F(CallerSessionTest, ACallForAnotherIncarnationThanTheOneThatAnswersFailsAtOnce) {
  AskOnly(1, 8);
  ASSERT_EQ(Outcomes(), Codes{absl::StatusCode::kAborted});
  EXPECT_TRUE(absl::StrContains(Statuses()[0].message(), "it was restarted")) << Statuses()[0];
  EXPECT_TRUE(Requests().empty());
}

TEST_F(CallerSessionTest, RPC_61_AMutationIsNeverSentInAnotherSession) {
  Ask(1);
  session_.OnLinkClosed(kNow, kLink, actions_);
  Connect(4, /*resumed=*/false);
  EXPECT_EQ(Outcomes(), Codes{absl::StatusCode::kAborted});
  EXPECT_EQ(Requests().size(), 1u);
}

}  // namespace
}  // namespace psd::rpc
