#include "core/rpc/callee_session.h"

#include <memory>
#include <optional>
#include <utility>

#include "core/base/buffer.h"
#include "core/base/memory_budget.h"
#include "gtest/gtest.h"

namespace psd::rpc {
namespace {

const absl::Time kNow = absl::UnixEpoch();

class CalleeSessionTest : public ::testing::Test {
 protected:
  // Sessions are charged to `memory`, unless it is null.
  explicit CalleeSessionTest(std::shared_ptr<MemoryAccount> memory = nullptr) {
    if (memory != nullptr) charge_ = *memory->Charge(CalleeSession::kSessionBytes);
    options_.memory = std::move(memory);
    session_.emplace(options_, PeerInfo{"a", 1}, 7, "grpc 10.0.0.1:1", kNow, charge_);
  }
  RequestVerdict Ask(CallId id, uint64_t sequence, Ack ack = {}, uint32_t attempt = 0) {
    RequestMeta meta;
    meta.call_id = id;
    meta.sequence = sequence;
    meta.deadline = deadline_;
    meta.ack = std::move(ack);
    meta.attempt = attempt;
    return session_->OnRequest(1, meta, std::make_shared<Opaque>(), actions_);
  }
  template <typename A>
  size_t Count() const {
    size_t count = 0;
    for (const Action& action : actions_) count += std::holds_alternative<A>(action);
    return count;
  }

  SessionOptions options_;
  absl::Time deadline_ = absl::InfiniteFuture();
  MemoryCharge charge_;
  std::optional<CalleeSession> session_;
  Actions actions_;
};

TEST_F(CalleeSessionTest, RPC_61_ARetryOfARunningMutationJoinsIt) {
  EXPECT_EQ(Ask(1, 1), RequestVerdict::kRun);
  EXPECT_EQ(Ask(1, 1), RequestVerdict::kRunning);
}

TEST_F(CalleeSessionTest, RPC_61_ARetryOfAnAnsweredMutationGetsItsAnswer) {
  EXPECT_EQ(Ask(1, 1), RequestVerdict::kRun);
  session_->OnReply(1, std::make_shared<Opaque>(), 10, /*gives=*/false, actions_);
  EXPECT_EQ(session_->remembered(), 1u);
  EXPECT_EQ(session_->remembered_bytes(), 10u);
  EXPECT_EQ(Ask(1, 1), RequestVerdict::kReplayed);
  EXPECT_EQ(Count<SendAnswerAction>(), 1u);
}

TEST_F(CalleeSessionTest, AnotherRequestUnderTheNumberOfAnAnsweredOneIsNotRun) {
  const auto ask = [&](uint64_t fingerprint) {
    RequestMeta meta;
    meta.call_id = meta.sequence = 1;
    meta.deadline = deadline_;
    meta.fingerprint = fingerprint;
    return session_->OnRequest(1, meta, std::make_shared<Opaque>(), actions_);
  };
  EXPECT_EQ(ask(5), RequestVerdict::kRun);
  EXPECT_EQ(ask(6), RequestVerdict::kOther);
  session_->OnReply(1, std::make_shared<Opaque>(), 10, /*gives=*/false, actions_);
  EXPECT_EQ(ask(6), RequestVerdict::kOther);
  EXPECT_EQ(ask(5), RequestVerdict::kReplayed);
}

TEST_F(CalleeSessionTest, AReadsAnswerThatIsRefusedIsDroppedOnce) {
  const auto answer = std::make_shared<Opaque>();
  session_->set_link(1);
  EXPECT_EQ(Ask(1, 0, {}, 1), RequestVerdict::kRun);
  session_->OnReply(1, answer, 10, /*gives=*/true, actions_);
  session_->OnAnswerRefused(1, answer, actions_);
  ASSERT_EQ(Count<AnswerDroppedAction>(), 1u);
  EXPECT_EQ(std::get<AnswerDroppedAction>(actions_.back()).answer, answer);
  session_->OnAnswerRefused(1, answer, actions_);
  session_->OnCancel(1, 0, actions_);
  EXPECT_EQ(Count<AnswerDroppedAction>(), 1u);
}

TEST_F(CalleeSessionTest, ARefusalThatComesAfterTheCancelDropsNothingMore) {
  const auto answer = std::make_shared<Opaque>();
  session_->set_link(1);
  EXPECT_EQ(Ask(1, 0, {}, 1), RequestVerdict::kRun);
  session_->OnReply(1, answer, 10, /*gives=*/true, actions_);
  session_->OnCancel(1, 0, actions_);
  session_->OnAnswerRefused(1, answer, actions_);
  EXPECT_EQ(Count<AnswerDroppedAction>(), 1u);
}

TEST_F(CalleeSessionTest, NumbersMayArriveOutOfOrder) {
  EXPECT_EQ(Ask(2, 2), RequestVerdict::kRun);
  EXPECT_EQ(Ask(1, 1), RequestVerdict::kRun);
}

TEST_F(CalleeSessionTest, RPC_61_AnAcknowledgedAnswerIsForgottenAndItsCopiesAreStale) {
  EXPECT_EQ(Ask(1, 1), RequestVerdict::kRun);
  session_->OnReply(1, std::make_shared<Opaque>(), 10, /*gives=*/false, actions_);
  EXPECT_EQ(Ask(2, 2, Ack{1, {}}), RequestVerdict::kRun);
  EXPECT_EQ(session_->remembered(), 0u);
  EXPECT_EQ(session_->remembered_bytes(), 0u);
  EXPECT_EQ(Ask(1, 1), RequestVerdict::kStale);
}

// Destroying an answer may take long, and the driver calls the session under a lock.
TEST_F(CalleeSessionTest, AnAcknowledgedAnswerIsDestroyedByTheDriver) {
  auto answer = std::make_shared<Opaque>();
  const std::weak_ptr<Opaque> watched = answer;
  EXPECT_EQ(Ask(1, 1), RequestVerdict::kRun);
  session_->OnReply(1, std::move(answer), 10, /*gives=*/false, actions_);
  EXPECT_TRUE(session_->OnAck(Ack{1, {}}, actions_));
  EXPECT_FALSE(watched.expired());
  actions_.clear();
  EXPECT_TRUE(watched.expired());
}

TEST_F(CalleeSessionTest, RPC_34_ACancelThatOvertakesItsRequestStopsIt) {
  session_->OnCancel(1, 1, actions_);
  EXPECT_EQ(Ask(1, 1), RequestVerdict::kStale);
}

TEST_F(CalleeSessionTest, RPC_34_ACancelStopsWhatHasNotBegunToApply) {
  EXPECT_EQ(Ask(1, 1), RequestVerdict::kRun);
  session_->OnCancel(1, 1, actions_);
  EXPECT_EQ(Count<CancelWorkAction>(), 1u);
  EXPECT_FALSE(session_->BeginRun(1));
  EXPECT_FALSE(session_->BeginApply(1));
}

TEST_F(CalleeSessionTest, ACancelDoesNotStopWhatApplies) {
  EXPECT_EQ(Ask(1, 1), RequestVerdict::kRun);
  EXPECT_TRUE(session_->BeginApply(1));
  session_->OnCancel(1, 1, actions_);
  EXPECT_EQ(Count<CancelWorkAction>(), 0u);
}

TEST_F(CalleeSessionTest, ACancelledCallersAnswerIsDroppedWhicheverOfTheTwoComesFirst) {
  EXPECT_EQ(Ask(1, 1), RequestVerdict::kRun);
  EXPECT_TRUE(session_->BeginApply(1));
  session_->OnCancel(1, 1, actions_);
  session_->OnReply(1, std::make_shared<Opaque>(), 10, /*gives=*/false, actions_);
  EXPECT_EQ(Count<AnswerDroppedAction>(), 1u);
  EXPECT_EQ(Ask(2, 2), RequestVerdict::kRun);
  session_->OnReply(2, std::make_shared<Opaque>(), 10, /*gives=*/false, actions_);
  session_->OnCancel(2, 2, actions_);
  session_->OnCancel(2, 2, actions_);
  EXPECT_EQ(Count<AnswerDroppedAction>(), 2u);
  EXPECT_EQ(Ask(3, 3), RequestVerdict::kRun);
  session_->OnReply(3, std::make_shared<Opaque>(), 10, /*gives=*/false, actions_);
  session_->OnAck(Ack{3, {}}, actions_);
  EXPECT_EQ(Count<AnswerDroppedAction>(), 2u) << "an acknowledged answer has arrived";
}

TEST_F(CalleeSessionTest, AReadsAnswerThatNobodyTakesIsDropped) {
  session_->set_link(1);
  EXPECT_EQ(Ask(1, 0), RequestVerdict::kRun);
  EXPECT_EQ(Ask(2, 0), RequestVerdict::kRun);
  session_->OnCancel(1, 0, actions_);
  EXPECT_EQ(session_->OnReply(1, std::make_shared<Opaque>(), 10, /*gives=*/false, actions_).link,
            0u);
  EXPECT_EQ(Count<AnswerDroppedAction>(), 1u);
  session_->set_link(0);
  EXPECT_EQ(session_->OnReply(2, std::make_shared<Opaque>(), 10, /*gives=*/false, actions_).link,
            0u);
  EXPECT_EQ(Count<AnswerDroppedAction>(), 2u);
}

TEST_F(CalleeSessionTest, OnlyWhatBeganToApplyIsInDoubt) {
  for (uint64_t i = 1; i <= 4; ++i) EXPECT_EQ(Ask(i, i), RequestVerdict::kRun);
  EXPECT_TRUE(session_->BeginApply(1));
  EXPECT_TRUE(session_->BeginApply(2));
  session_->OnReply(2, std::make_shared<Opaque>(), 10, /*gives=*/false, actions_);
  session_->OnReply(3, std::make_shared<Opaque>(), 10, /*gives=*/false, actions_);
  const Ack in_doubt = session_->InDoubt();
  EXPECT_EQ(in_doubt.watermark, 2u) << "one applies, one has applied; the others did not";
  EXPECT_TRUE(in_doubt.ranges.empty());
}

TEST_F(CalleeSessionTest, CancelsPassNoBoundOnRanges) {
  options_.max_unacknowledged_answers = 4;
  for (uint64_t i = 1; i <= 16; ++i) ASSERT_TRUE(session_->OnCancel(i, 2 * i, actions_));
  EXPECT_FALSE(session_->OnCancel(17, 34, actions_));
}

TEST_F(CalleeSessionTest, RPC_34_TheDeadlineStopsWhatHasNotBegunToApply) {
  deadline_ = kNow + absl::Seconds(1);
  EXPECT_EQ(Ask(1, 1), RequestVerdict::kRun);
  EXPECT_EQ(session_->next_deadline(), deadline_);
  session_->Tick(kNow + absl::Milliseconds(999), actions_);
  EXPECT_TRUE(session_->BeginRun(1));
  session_->Tick(deadline_, actions_);
  EXPECT_FALSE(session_->BeginApply(1));
  EXPECT_EQ(session_->next_deadline(), absl::InfiniteFuture());
}

// The caller may send the call again in its next session, and it must not be applied twice.
TEST_F(CalleeSessionTest, RPC_61_TheEndOfTheSessionStopsWhatHasNotBegunToApply) {
  EXPECT_EQ(Ask(1, 1), RequestVerdict::kRun);
  session_->End(actions_);
  EXPECT_EQ(Count<CancelWorkAction>(), 1u);
  EXPECT_FALSE(session_->BeginApply(1));
}

// The answer was lost with its link.
TEST_F(CalleeSessionTest, AReadThatIsSentAgainTakesBackWhatItsAnswerGave) {
  session_->set_link(1);
  const auto first = std::make_shared<Opaque>();
  EXPECT_EQ(Ask(1, 0, {}, 1), RequestVerdict::kRun);
  EXPECT_EQ(session_->OnReply(1, first, 10, /*gives=*/true, actions_).attempt, 1u);
  EXPECT_EQ(Ask(1, 0, {}, 1), RequestVerdict::kStale) << "a copy of the one that was answered";
  EXPECT_EQ(Count<AnswerDroppedAction>(), 0u);
  EXPECT_EQ(Ask(1, 0, {}, 2), RequestVerdict::kRun);
  ASSERT_EQ(Count<AnswerDroppedAction>(), 1u);
  EXPECT_EQ(std::get<AnswerDroppedAction>(actions_.back()).answer, first);
  EXPECT_EQ(Ask(1, 0, {}, 3), RequestVerdict::kRunning);
  EXPECT_EQ(session_->OnReply(1, std::make_shared<Opaque>(), 10, true, actions_).attempt, 3u);
  EXPECT_EQ(Ask(1, 0, {}, 2), RequestVerdict::kStale);
  EXPECT_EQ(Count<AnswerDroppedAction>(), 1u);
}

TEST_F(CalleeSessionTest, AReadThatIsGivenUpTakesBackWhatItsAnswerGaveOnce) {
  session_->set_link(1);
  EXPECT_EQ(Ask(1, 0, {}, 1), RequestVerdict::kRun);
  session_->OnReply(1, std::make_shared<Opaque>(), 10, /*gives=*/true, actions_);
  session_->OnCancel(1, 0, actions_);
  session_->OnCancel(1, 0, actions_);
  EXPECT_EQ(Count<AnswerDroppedAction>(), 1u);
  EXPECT_EQ(Ask(1, 0, {}, 1), RequestVerdict::kStale) << "a copy that comes late";
}

TEST_F(CalleeSessionTest, AReadThatIsOverHasWhatItsAnswerGave) {
  session_->set_link(1);
  EXPECT_EQ(Ask(1, 0, {}, 1), RequestVerdict::kRun);
  session_->OnReply(1, std::make_shared<Opaque>(), 10, /*gives=*/true, actions_);
  session_->OnCallsOver(2);
  EXPECT_EQ(Ask(1, 0, {}, 2), RequestVerdict::kStale);
  session_->OnCancel(1, 0, actions_);
  EXPECT_EQ(Count<AnswerDroppedAction>(), 0u);
}

TEST_F(CalleeSessionTest, HoweverFewReadsMayRunWhatTheyGaveIsRemembered) {
  options_.max_running_reads = 1;
  session_->set_link(1);
  for (CallId id = 1; id <= 3; ++id) {
    EXPECT_EQ(Ask(id, 0, {}, 1), RequestVerdict::kRun);
    session_->OnReply(id, std::make_shared<Opaque>(), 10, /*gives=*/true, actions_);
  }
  for (CallId id = 1; id <= 3; ++id) session_->OnCancel(id, 0, actions_);
  EXPECT_EQ(Count<AnswerDroppedAction>(), 3u);
}

TEST_F(CalleeSessionTest, AnAnswerToAReadThatIsOverMeanwhileIsDropped) {
  session_->set_link(1);
  EXPECT_EQ(Ask(1, 0, {}, 1), RequestVerdict::kRun);
  session_->OnCallsOver(2);
  EXPECT_EQ(session_->OnReply(1, std::make_shared<Opaque>(), 10, /*gives=*/true, actions_).link,
            0u);
  EXPECT_EQ(Count<AnswerDroppedAction>(), 1u);
}

TEST_F(CalleeSessionTest, ReadsThatGiveNothingAreNotRemembered) {
  EXPECT_EQ(Ask(1, 0), RequestVerdict::kRun);
  EXPECT_EQ(Ask(1, 0), RequestVerdict::kRunning);
  session_->OnReply(1, std::make_shared<Opaque>(), 10, /*gives=*/false, actions_);
  EXPECT_EQ(session_->remembered(), 0u);
  EXPECT_EQ(Ask(1, 0), RequestVerdict::kRun);
}

TEST_F(CalleeSessionTest, ReadsThatRunAtOnceHaveABoundAndMutationsDoNotCount) {
  options_.max_running_reads = 2;
  EXPECT_EQ(Ask(1, 1), RequestVerdict::kRun);
  EXPECT_EQ(Ask(2, 0), RequestVerdict::kRun);
  EXPECT_EQ(Ask(3, 0), RequestVerdict::kRun);
  EXPECT_EQ(Ask(4, 0), RequestVerdict::kTooMany);
  EXPECT_EQ(Ask(3, 0), RequestVerdict::kRunning);
  EXPECT_EQ(Ask(5, 2), RequestVerdict::kRun);
  session_->OnReply(2, std::make_shared<Opaque>(), 10, /*gives=*/false, actions_);
  EXPECT_EQ(Ask(4, 0), RequestVerdict::kRun);
}

TEST_F(CalleeSessionTest, OneNumberForTwoCallsRunsTheFirst) {
  EXPECT_EQ(Ask(1, 1), RequestVerdict::kRun);
  EXPECT_EQ(Ask(2, 1), RequestVerdict::kOther);
}

TEST_F(CalleeSessionTest, ANumberIsKnownFromItsRequestOn) {
  EXPECT_FALSE(session_->Knows(2));
  EXPECT_EQ(Ask(2, 2), RequestVerdict::kRun);
  EXPECT_TRUE(session_->Knows(2));
  EXPECT_FALSE(session_->Knows(1));
  EXPECT_TRUE(session_->OnAck({2, {}}, actions_));
  EXPECT_TRUE(session_->Knows(1)) << "it is over at the caller";
  EXPECT_EQ(session_->acknowledged_up_to(), 2u);
}

TEST_F(CalleeSessionTest, TalkingRenewsTheLease) {
  session_->OnHeard(kNow + absl::Seconds(5));
  EXPECT_EQ(session_->lease_until(), kNow + absl::Seconds(5) + options_.lease);
}

TEST_F(CalleeSessionTest, StallsPostponeTheLeasesEndAFewTimesUntilTheCallerIsHeardAgain) {
  for (int i = 0; i < 10; ++i) session_->ExtendLease(absl::Seconds(20));
  EXPECT_EQ(session_->lease_until(), kNow + options_.lease + Leniency::kMost * absl::Seconds(20));
  session_->OnHeard(kNow + absl::Seconds(80));
  for (int i = 0; i < 10; ++i) session_->ExtendLease(absl::Seconds(20));
  EXPECT_EQ(session_->lease_until(),
            kNow + absl::Seconds(80) + options_.lease + Leniency::kMost * absl::Seconds(20));
}

// A session whose worker has no memory for more than a session's own calls.
class FullCalleeSessionTest : public CalleeSessionTest {
 protected:
  FullCalleeSessionTest()
      : CalleeSessionTest(MemoryAccount::Create(size_t{96} << 10, NewHeapAllocator())),
        full_(*options_.memory->Charge(size_t{64} << 10)) {}
  // Fills the session with mutations from number 1 on. Returns how many ran.
  uint64_t Fill() {
    uint64_t ran = 0;
    while (Ask(ran + 1, ran + 1) == RequestVerdict::kRun) ++ran;
    return ran;
  }

  MemoryCharge full_;  // the rest is charged with the session
};

TEST_F(FullCalleeSessionTest, TheFirstCallsRunWhateverOthersHold) {
  EXPECT_EQ(Fill(), 16u);
  EXPECT_EQ(session_->refusal().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(Ask(100, 0), RequestVerdict::kNoMemory) << "a read";
}

TEST_F(FullCalleeSessionTest, ARefusedMutationNeverRunsAndItsCopiesAreRefusedToo) {
  const uint64_t refused = Fill() + 1;
  full_.reset();
  EXPECT_EQ(Ask(refused, refused), RequestVerdict::kNoMemory);
  EXPECT_EQ(Ask(refused + 1, refused + 1), RequestVerdict::kRun);
  EXPECT_EQ(Ask(refused + 2, refused + 2, {refused, {}}), RequestVerdict::kRun);
  EXPECT_EQ(Ask(refused, refused), RequestVerdict::kStale) << "acknowledged";
}

TEST_F(FullCalleeSessionTest, AnAcknowledgementMakesRoom) {
  const uint64_t ran = Fill();
  session_->OnReply(1, std::make_shared<Opaque>(), 10, /*gives=*/false, actions_);
  EXPECT_EQ(Ask(ran + 2, ran + 2), RequestVerdict::kNoMemory);
  EXPECT_TRUE(session_->OnAck({1, {}}, actions_));
  EXPECT_EQ(Ask(ran + 3, ran + 3), RequestVerdict::kRun);
}

TEST_F(FullCalleeSessionTest, ASessionMayPayForFewerCalls) {
  session_.emplace(options_, PeerInfo{"a", 1}, 7, "grpc 10.0.0.1:1", kNow, charge_,
                   /*own_calls=*/4);
  EXPECT_EQ(Fill(), 4u);
}

TEST_F(FullCalleeSessionTest, ACallWhoseRoomIsCheckedFirstMayComeAgain) {
  for (uint64_t i = 1; i <= 16; ++i) ASSERT_EQ(Ask(i, i), RequestVerdict::kRun);
  EXPECT_EQ(session_->CheckRoom().code(), absl::StatusCode::kResourceExhausted);
  full_.reset();
  EXPECT_TRUE(session_->CheckRoom().ok());
  EXPECT_EQ(Ask(17, 17), RequestVerdict::kRun);
}

TEST_F(FullCalleeSessionTest, AMutationThatWasGivenUpMakesRoomWhenItEnds) {
  const uint64_t ran = Fill();
  EXPECT_TRUE(session_->BeginApply(1));
  EXPECT_TRUE(session_->OnCancel(1, 1, actions_));
  EXPECT_EQ(Ask(ran + 2, ran + 2), RequestVerdict::kNoMemory);
  session_->OnReply(1, std::make_shared<Opaque>(), 10, /*gives=*/false, actions_);
  EXPECT_EQ(Ask(ran + 3, ran + 3), RequestVerdict::kRun);
}

TEST_F(FullCalleeSessionTest, AnAnsweredReadMakesRoom) {
  for (CallId id = 1; id <= 16; ++id) ASSERT_EQ(Ask(id, 0), RequestVerdict::kRun);
  EXPECT_EQ(Ask(17, 0), RequestVerdict::kNoMemory);
  session_->OnReply(5, std::make_shared<Opaque>(), 10, /*gives=*/false, actions_);
  EXPECT_EQ(Ask(18, 0), RequestVerdict::kRun);
}

}  // namespace
}  // namespace psd::rpc
