#include "core/services/collectives/group_ledger.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/base/status.h"
#include "core/services/collectives/call_plan.h"
#include "core/services/collectives/collective_call.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace psd::services {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr PlanLimits kLimits{/*small_bytes=*/64, /*piece_bytes=*/128,
                             /*most_direct_bytes=*/0, /*most_extra_bytes=*/0,
                             /*notice_bytes=*/0};
constexpr absl::Duration kTimeout = absl::Seconds(5);
const absl::Time kStart = absl::UnixEpoch();

CollectiveCall AllReduce(int64_t elements) {
  CollectiveCall call;
  call.operation = Operation::kAllReduce;
  call.reduction = Reduction::kSum;
  call.form = TensorForm{DType::kF32, {elements}};
  return call;
}

CollectiveCall Barrier() {
  return {};
}

// Rank 0 of three.
class GroupLedgerTest : public ::testing::Test {
 protected:
  explicit GroupLedgerTest(const PlanLimits& limits = kLimits)
      : ledger_("ranks", {"a", "b", "c"}, 0, limits) {}

  uint64_t Enter(const CollectiveCall& call, absl::Duration timeout = kTimeout) {
    const auto number = ledger_.Enter(call, kStart, timeout, effects_);
    EXPECT_TRUE(number.ok()) << number.status();
    return number.value_or(0);
  }
  // Unless a test says otherwise, `from` has completed all calls before.
  void Heard(int from, uint64_t number, const CollectiveCall& call,
             std::optional<uint64_t> completed = std::nullopt) {
    EXPECT_TRUE(ledger_.Heard(from, number, completed.value_or(number), call, effects_).ok());
  }
  void EnterUntilTheWindowMoves(uint64_t completed_by_1);
  // Returns the effects since the last call of this function: "tell 0, complete 0".
  std::string Effects() {
    std::string text;
    for (const GroupEffect& effect : effects_) {
      constexpr const char* kNames[] = {"tell",         "open",     "reduce",
                                        "send-reduced", "complete", "fail"};
      absl::StrAppend(&text, text.empty() ? "" : ", ", kNames[effect.kind]);
      if (effect.kind != GroupEffect::kFail) absl::StrAppend(&text, " ", effect.number);
      if (effect.kind == GroupEffect::kOpen) absl::StrAppend(&text, " to ", effect.rank);
      if (effect.kind == GroupEffect::kReduce || effect.kind == GroupEffect::kSendReduced)
        absl::StrAppend(&text, " piece ", effect.index);
    }
    effects_.clear();
    return text;
  }
  std::string Failure() const { return std::string(ledger_.failure().message()); }
  std::string Culprit() const {
    const auto detail = GetDetail(ledger_.failure());
    return detail.has_value() ? detail->worker : "";
  }

  GroupLedger ledger_;
  GroupEffects effects_;
};

TEST_F(GroupLedgerTest, ASmallCallIsCompleteWhenAllHaveMadeIt) {
  Enter(AllReduce(4));
  EXPECT_EQ(Effects(), "tell 0");
  Heard(2, 0, AllReduce(4));
  EXPECT_EQ(ledger_.FirstAbsent(0), 1);
  EXPECT_EQ(Effects(), "");
  Heard(1, 0, AllReduce(4));
  EXPECT_EQ(Effects(), "complete 0");
  EXPECT_EQ(ledger_.NextDeadline(kStart), absl::InfiniteFuture());
}

TEST_F(GroupLedgerTest, OthersMayMakeTheCallFirst) {
  Heard(1, 0, Barrier());
  Heard(2, 0, Barrier());
  EXPECT_EQ(Effects(), "");
  Enter(Barrier());
  EXPECT_EQ(Effects(), "tell 0, complete 0");
}

TEST_F(GroupLedgerTest, PiecesGoToARankThatHasMadeTheCall) {
  Heard(1, 0, AllReduce(100));
  EXPECT_EQ(Effects(), "");
  Enter(AllReduce(100));
  EXPECT_EQ(Effects(), "tell 0, open 0 to 1");
  ledger_.Told(1, 0, effects_);
  ledger_.Told(2, 0, effects_);
  EXPECT_EQ(Effects(), "");
  Heard(2, 0, AllReduce(100));
  EXPECT_EQ(Effects(), "open 0 to 2");
}

TEST_F(GroupLedgerTest, PiecesGoToARankThatTakesWhatTheRootGivesWhenItKnowsTheForm) {
  CollectiveCall give;
  give.operation = Operation::kBroadcast;
  give.form = TensorForm{DType::kF32, {100}};
  CollectiveCall take = give;
  take.form.reset();
  Enter(give);
  Effects();
  Heard(1, 0, take);
  EXPECT_EQ(Effects(), "") << "rank 1 does not know how many pieces come";
  Heard(2, 0, give);
  EXPECT_EQ(Effects(), "open 0 to 2, complete 0");
  ledger_.Told(1, 0, effects_);
  EXPECT_EQ(Effects(), "open 0 to 1");
}

TEST_F(GroupLedgerTest, APieceMayOvertakeTheMessageThatItsRankHasMadeTheCall) {
  Enter(AllReduce(100));
  Effects();
  EXPECT_TRUE(ledger_.Arrived(1, 0, 0, 0, effects_).ok());
  Heard(2, 0, AllReduce(100));
  EXPECT_TRUE(ledger_.Arrived(2, 0, 0, 0, effects_).ok());
  EXPECT_EQ(Effects(), "open 0 to 2, reduce 0 piece 0");
  for (const size_t index : {0, 1}) EXPECT_TRUE(ledger_.Arrived(2, 0, 1, index, effects_).ok());
  EXPECT_TRUE(ledger_.Arrived(1, 0, 1, 0, effects_).ok());
  for (int i = 0; i < 3; ++i) ledger_.Stored(0, effects_);
  ledger_.Reduced(0, 0, effects_);
  EXPECT_EQ(Effects(), "send-reduced 0 piece 0") << "rank 1 may have made another call";
  Heard(1, 0, AllReduce(100));
  EXPECT_EQ(Effects(), "open 0 to 1, complete 0");
}

// 100 floats on three ranks are parts of 128, 128 and 144 bytes, so that rank 0 gets one piece of
// each phase from ranks 0 and 1, and two reduced ones from rank 2.
TEST_F(GroupLedgerTest, ALargeAllReduceReducesThenGathers) {
  Enter(AllReduce(100));
  for (int rank : {1, 2}) {
    Heard(rank, 0, AllReduce(100));
    ledger_.Told(rank, 0, effects_);
  }
  Effects();
  EXPECT_TRUE(ledger_.Arrived(2, 0, 0, 0, effects_).ok());
  EXPECT_EQ(Effects(), "");
  EXPECT_TRUE(ledger_.Arrived(1, 0, 0, 0, effects_).ok());
  EXPECT_EQ(Effects(), "reduce 0 piece 0");
  ledger_.Reduced(0, 0, effects_);
  EXPECT_EQ(Effects(), "send-reduced 0 piece 0");
  EXPECT_TRUE(ledger_.Arrived(2, 0, 1, 1, effects_).ok());
  EXPECT_TRUE(ledger_.Arrived(1, 0, 1, 0, effects_).ok());
  EXPECT_TRUE(ledger_.Arrived(2, 0, 1, 0, effects_).ok());
  ledger_.Stored(0, effects_);
  ledger_.Stored(0, effects_);
  EXPECT_EQ(Effects(), "");
  ledger_.Stored(0, effects_);
  EXPECT_EQ(Effects(), "complete 0");
}

// The notices bring the parts, so a rank sends pieces of sums only.
class NoticesBringParts : public GroupLedgerTest {
 protected:
  NoticesBringParts()
      : GroupLedgerTest({/*small_bytes=*/64, /*piece_bytes=*/128, /*most_direct_bytes=*/0,
                         /*most_extra_bytes=*/0, /*notice_bytes=*/256, /*most_notice_bytes=*/512,
                         /*most_shared_bytes=*/512}) {}
};

TEST_F(NoticesBringParts, AnAllReduceReducesWithTheLastNoticeThenGathers) {
  Enter(AllReduce(100));
  EXPECT_EQ(Effects(), "tell 0");
  Heard(1, 0, AllReduce(100));
  EXPECT_EQ(Effects(), "open 0 to 1");
  EXPECT_TRUE(absl::IsInvalidArgument(ledger_.Arrived(1, 0, 0, 0, effects_)))
      << "the notice has brought it";
  EXPECT_TRUE(ledger_.Arrived(1, 0, 1, 0, effects_).ok());
  ledger_.Stored(0, effects_);
  EXPECT_EQ(Effects(), "");
  Heard(2, 0, AllReduce(100));
  EXPECT_EQ(Effects(), "open 0 to 2, reduce 0 piece 0");
  ledger_.Reduced(0, 0, effects_);
  EXPECT_EQ(Effects(), "send-reduced 0 piece 0");
  EXPECT_TRUE(ledger_.Arrived(2, 0, 1, 0, effects_).ok());
  EXPECT_EQ(Effects(), "");
  ledger_.Stored(0, effects_);
  EXPECT_EQ(Effects(), "complete 0");
}

TEST_F(NoticesBringParts, AllSumsMayComeBeforeThisRankHasReducedItsPart) {
  Enter(AllReduce(100));
  for (int rank : {1, 2}) {
    EXPECT_TRUE(ledger_.Arrived(rank, 0, 1, 0, effects_).ok());
    ledger_.Stored(0, effects_);
  }
  EXPECT_EQ(Effects(), "tell 0");
  for (int rank : {1, 2}) Heard(rank, 0, AllReduce(100));
  EXPECT_EQ(Effects(), "open 0 to 1, open 0 to 2, reduce 0 piece 0");
  ledger_.Reduced(0, 0, effects_);
  EXPECT_EQ(Effects(), "send-reduced 0 piece 0, complete 0");
}

TEST_F(NoticesBringParts, ARankWhoseSumsAreMissingIsNamed) {
  Enter(AllReduce(100));
  for (int rank : {1, 2}) Heard(rank, 0, AllReduce(100));
  ledger_.Reduced(0, 0, effects_);
  EXPECT_TRUE(ledger_.Arrived(1, 0, 1, 0, effects_).ok());
  ledger_.Stored(0, effects_);
  ledger_.Expire(kStart + kTimeout, effects_);
  EXPECT_TRUE(ledger_.failure().ok()) << "rank 2 may wait for another one, which speaks first";
  ledger_.Expire(kStart + kTimeout + absl::Seconds(1), effects_);
  EXPECT_EQ(Culprit(), "c");
  EXPECT_THAT(Failure(), HasSubstr("for sums of rank 2 (c)"));
}

TEST_F(GroupLedgerTest, OnlySixteenCallsAreBegunBeyondTheOldest) {
  for (uint64_t i = 0; i <= GroupLedger::kMaxUnderWay; ++i) EXPECT_EQ(Enter(Barrier()), i);
  EXPECT_THAT(Effects(), Not(HasSubstr("tell 16")));
  // A later call that is complete makes no room, the oldest does.
  for (int rank : {1, 2}) Heard(rank, 3, Barrier());
  EXPECT_EQ(Effects(), "complete 3");
  for (int rank : {1, 2}) Heard(rank, 0, Barrier());
  EXPECT_EQ(Effects(), "complete 0, tell 16");
}

TEST_F(GroupLedgerTest, TooManyCallsAreRefusedAndTheGroupGoesOn) {
  for (uint64_t i = 0; i < GroupLedger::kMaxEntered; ++i) Enter(Barrier());
  EXPECT_EQ(ledger_.Enter(Barrier(), kStart, kTimeout, effects_).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(ledger_.failure().ok());
}

TEST_F(GroupLedgerTest, DDP_30_ALateRankIsNamedAtTheDeadline) {
  Enter(AllReduce(4));
  Heard(1, 0, AllReduce(4));
  Effects();
  ledger_.Expire(kStart + kTimeout - absl::Nanoseconds(1), effects_);
  EXPECT_EQ(Effects(), "");
  EXPECT_EQ(ledger_.NextDeadline(kStart), kStart + kTimeout);
  ledger_.Expire(kStart + kTimeout, effects_);
  EXPECT_EQ(Effects(), "fail");
  EXPECT_TRUE(absl::IsDeadlineExceeded(ledger_.failure()));
  EXPECT_THAT(Failure(), HasSubstr("group 'ranks': rank 0 (a) waited 5s in call 0, all-reduce "
                                   "(sum) of f32[4], which was not made by rank 2 (c)"));
  EXPECT_THAT(Failure(), Not(HasSubstr("rank 1")));
  EXPECT_EQ(Culprit(), "c");
}

TEST_F(GroupLedgerTest, DeadlinesCanBePutOffOnce) {
  Enter(Barrier());
  const absl::Time due = kStart + kTimeout;
  ledger_.Extend(due - absl::Milliseconds(1), kStart + 9 * kTimeout);
  EXPECT_EQ(ledger_.NextDeadline(kStart), due) << "it was not due yet";
  ledger_.Extend(due, kStart + 2 * kTimeout);
  ledger_.Extend(due + absl::Seconds(1), kStart + 3 * kTimeout);
  ledger_.Expire(kStart + kTimeout, effects_);
  EXPECT_TRUE(ledger_.failure().ok());
  EXPECT_EQ(ledger_.NextDeadline(kStart + kTimeout), kStart + 2 * kTimeout);
  ledger_.Expire(kStart + 2 * kTimeout, effects_);
  EXPECT_FALSE(ledger_.failure().ok());
}

TEST_F(GroupLedgerTest, ARankWhoseDataIsLateIsNamed) {
  Enter(AllReduce(100));
  for (int rank : {1, 2}) Heard(rank, 0, AllReduce(100));
  EXPECT_TRUE(ledger_.Arrived(2, 0, 0, 0, effects_).ok());
  EXPECT_TRUE(ledger_.Arrived(2, 0, 1, 0, effects_).ok());
  ledger_.Stored(0, effects_);
  EXPECT_TRUE(ledger_.Arrived(2, 0, 1, 1, effects_).ok());
  ledger_.Stored(0, effects_);
  ledger_.Expire(kStart + kTimeout, effects_);
  EXPECT_THAT(Failure(), HasSubstr("for data of rank 1 (b)"));
  EXPECT_EQ(Culprit(), "b");
}

TEST_F(GroupLedgerTest, ARankThatWaitsForALateOneIsNotNamed) {
  Enter(AllReduce(100));
  for (int rank : {1, 2}) Heard(rank, 0, AllReduce(100));
  // Rank 1 has sent its data. It cannot send sums, because it waits for rank 2, too.
  EXPECT_TRUE(ledger_.Arrived(1, 0, 0, 0, effects_).ok());
  ledger_.Expire(kStart + kTimeout, effects_);
  EXPECT_THAT(Failure(), HasSubstr("for data of rank 2 (c);"));
  EXPECT_EQ(Culprit(), "c");
}

TEST_F(GroupLedgerTest, WhereSeveralMayBeLateARankThatKnowsMoreSpeaksFirst) {
  Enter(AllReduce(100));
  for (int rank : {1, 2}) Heard(rank, 0, AllReduce(100));
  for (int rank : {1, 2}) EXPECT_TRUE(ledger_.Arrived(rank, 0, 0, 0, effects_).ok());
  ledger_.Expire(kStart + kTimeout, effects_);
  EXPECT_TRUE(ledger_.failure().ok());
  EXPECT_GT(ledger_.NextDeadline(kStart + kTimeout), kStart + kTimeout);
  ledger_.Expire(ledger_.NextDeadline(kStart + kTimeout), effects_);
  EXPECT_THAT(Failure(), HasSubstr("for sums of rank 1 (b), rank 2 (c);"));
}

TEST_F(GroupLedgerTest, ARankWhoseSumsAreMissingIsNamedAfterARankForWhoseDataItMayWait) {
  Enter(AllReduce(100));
  for (int rank : {1, 2}) Heard(rank, 0, AllReduce(100));
  for (int rank : {1, 2}) EXPECT_TRUE(ledger_.Arrived(rank, 0, 0, 0, effects_).ok());
  for (const size_t index : {0, 1}) EXPECT_TRUE(ledger_.Arrived(2, 0, 1, index, effects_).ok());
  ledger_.Expire(kStart + kTimeout, effects_);
  EXPECT_TRUE(ledger_.failure().ok()) << ledger_.failure();
  ledger_.Expire(ledger_.NextDeadline(kStart + kTimeout), effects_);
  EXPECT_THAT(Failure(), HasSubstr("for sums of rank 1 (b);"));
}

TEST_F(GroupLedgerTest, ACallThatWaitsForOthersFailsForTheirReason) {
  for (uint64_t i = 0; i <= GroupLedger::kMaxUnderWay; ++i)
    Enter(Barrier(), i == GroupLedger::kMaxUnderWay ? kTimeout : 2 * kTimeout);
  ledger_.Expire(kStart + kTimeout, effects_);
  EXPECT_THAT(Failure(), HasSubstr("waited 5s in call 0, barrier"));
}

TEST_F(GroupLedgerTest, ACallThatWaitsForOthersLetsARankThatKnowsMoreSpeakFirst) {
  for (uint64_t i = 0; i <= GroupLedger::kMaxUnderWay; ++i)
    Enter(AllReduce(100), i == GroupLedger::kMaxUnderWay ? kTimeout : 2 * kTimeout);
  for (int rank : {1, 2}) {
    Heard(rank, 0, AllReduce(100));
    EXPECT_TRUE(ledger_.Arrived(rank, 0, 0, 0, effects_).ok());
  }
  ledger_.Expire(kStart + kTimeout, effects_);
  EXPECT_TRUE(ledger_.failure().ok()) << ledger_.failure();
  EXPECT_GT(ledger_.NextDeadline(kStart + kTimeout), kStart + kTimeout);
  EXPECT_LT(ledger_.NextDeadline(kStart + kTimeout), kStart + 2 * kTimeout);
  ledger_.Expire(ledger_.NextDeadline(kStart + kTimeout), effects_);
  EXPECT_THAT(Failure(), HasSubstr("for sums of rank 1 (b), rank 2 (c);"));
}

// Enters as many calls as can be under way, and one more after the first ones are complete.
void GroupLedgerTest::EnterUntilTheWindowMoves(uint64_t completed_by_1) {
  for (uint64_t i = 0; i <= GroupLedger::kMaxUnderWay; ++i) {
    Enter(Barrier());
    if (i == GroupLedger::kMaxUnderWay) break;
    Heard(1, i, Barrier(), std::min(i, completed_by_1));
    Heard(2, i, Barrier());
  }
}

TEST_F(GroupLedgerTest, DDP_30_ARankThatMayWaitInOlderCallsIsNotNamedBesideOneThatDoesNot) {
  EnterUntilTheWindowMoves(/*completed_by_1=*/0);
  ledger_.Expire(kStart + kTimeout, effects_);
  EXPECT_THAT(Failure(), HasSubstr("in call 16, barrier, which was not made by rank 2 (c);"));
  EXPECT_EQ(Culprit(), "c");
}

TEST_F(GroupLedgerTest, DDP_30_ARankThatMayWaitInOlderCallsSpeaksFirst) {
  EnterUntilTheWindowMoves(/*completed_by_1=*/0);
  Heard(2, GroupLedger::kMaxUnderWay, Barrier());
  // Rank 1 has call 0 under way, and may itself leave a second to those who know more.
  const absl::Time later = kStart + kTimeout + absl::Seconds(1);
  ledger_.Expire(later, effects_);
  EXPECT_TRUE(ledger_.failure().ok()) << ledger_.failure();
  ledger_.Expire(ledger_.NextDeadline(later), effects_);
  EXPECT_THAT(Failure(), HasSubstr("in call 16, barrier, which was not made by rank 1 (b);"));
}

TEST_F(GroupLedgerTest, DDP_30_ARankThatHasCompletedTheOlderCallsIsNamedAtTheDeadline) {
  EnterUntilTheWindowMoves(/*completed_by_1=*/1);
  Heard(2, GroupLedger::kMaxUnderWay, Barrier());
  ledger_.Expire(kStart + kTimeout, effects_);
  EXPECT_EQ(Culprit(), "b");
}

TEST_F(GroupLedgerTest, ZERO_17_DifferentCallsAreNamed) {
  Enter(AllReduce(4));
  Heard(1, 0, AllReduce(4));
  const absl::StatusOr<bool> keep = ledger_.Heard(2, 0, 0, AllReduce(5), effects_);
  EXPECT_TRUE(keep.ok() && !*keep) << keep.status();
  EXPECT_EQ(Effects(), "tell 0, fail");
  EXPECT_TRUE(absl::IsFailedPrecondition(ledger_.failure()));
  EXPECT_THAT(Failure(), HasSubstr("the ranks differ in call 0: rank 0 (a) calls all-reduce (sum) "
                                   "of f32[4], rank 2 (c) calls all-reduce (sum) of f32[5]"));
}

TEST_F(GroupLedgerTest, ZERO_17_DifferentCallsAreSeenBeforeThisRankMakesOne) {
  Heard(1, 0, AllReduce(4));
  Heard(2, 0, Barrier());
  EXPECT_EQ(Effects(), "fail");
  EXPECT_THAT(Failure(), HasSubstr("rank 1 (b) calls all-reduce (sum) of f32[4], rank 2 (c) calls "
                                   "barrier"));
  EXPECT_EQ(ledger_.Enter(Barrier(), kStart, kTimeout, effects_).status(), ledger_.failure());
}

TEST_F(GroupLedgerTest, ARankThatTakesWhatComesAgreesWithTheRoot) {
  CollectiveCall given;
  given.operation = Operation::kBroadcast;
  given.root = 1;
  Enter(given);
  CollectiveCall root = given;
  root.form = TensorForm{DType::kF32, {4}};
  Heard(2, 0, given);
  Heard(1, 0, root);
  EXPECT_EQ(Effects(), "tell 0, complete 0");
  // The next one: the ranks that say what they expect must agree.
  Enter(given);
  Heard(1, 1, root);
  root.form->dtype = DType::kF64;
  Heard(2, 1, root);
  EXPECT_THAT(Failure(), HasSubstr("the ranks differ in call 1"));
}

TEST_F(GroupLedgerTest, ARootWithoutATensorIsRefusedAndDoesNotCount) {
  CollectiveCall root;
  root.operation = Operation::kBroadcast;
  EXPECT_EQ(ledger_.Enter(root, kStart, kTimeout, effects_).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Enter(Barrier()), 0u);
}

TEST_F(GroupLedgerTest, ARankThatDiedFailsTheGroupAtOnce) {
  ledger_.Lost(1, absl::AbortedError("it was restarted"), effects_);
  EXPECT_EQ(Effects(), "fail");
  EXPECT_TRUE(absl::IsAborted(ledger_.failure()));
  EXPECT_THAT(Failure(), HasSubstr("rank 1 (b) is lost to rank 0 (a): it was restarted"));
  EXPECT_EQ(Culprit(), "b");
  ledger_.Lost(2, absl::UnavailableError("and this one"), effects_);
  EXPECT_EQ(Effects(), "") << "a group fails once";
  EXPECT_EQ(Culprit(), "b");
}

TEST_F(GroupLedgerTest, ARankThatRefusesAMessageIsNotTakenForDead) {
  ledger_.Lost(1, absl::ResourceExhaustedError("the budget is full"), effects_);
  EXPECT_EQ(ledger_.failure().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(Failure(),
              HasSubstr("rank 1 (b) refused a message of rank 0 (a): the budget is full"));
  EXPECT_EQ(Culprit(), "b");
}

TEST_F(GroupLedgerTest, ARankThatCannotSendAMessageNamesItself) {
  const absl::Status no_memory =
      WithDetail(absl::ResourceExhaustedError("no memory for 8 bytes"), {"a", "", "", false});
  ledger_.Left(2, effects_);
  ledger_.Lost(2, no_memory, effects_);
  EXPECT_TRUE(ledger_.failure().ok()) << "a rank that has left needs no message";
  ledger_.Lost(1, no_memory, effects_);
  EXPECT_EQ(ledger_.failure().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(Failure(), HasSubstr("rank 0 (a) cannot go on: no memory for 8 bytes"));
  EXPECT_EQ(Culprit(), "a");
}

TEST_F(GroupLedgerTest, ARankThatSendsWhatNoHonestRankSendsIsNamed) {
  ledger_.Broken(1, absl::InvalidArgumentError("no bools"), effects_);
  EXPECT_EQ(Effects(), "fail");
  EXPECT_TRUE(absl::IsFailedPrecondition(ledger_.failure())) << ledger_.failure();
  EXPECT_THAT(Failure(), HasSubstr("rank 1 (b) sent rank 0 (a) what no rank of this version sends: "
                                   "no bools"));
  EXPECT_EQ(Culprit(), "b");
}

TEST_F(GroupLedgerTest, ARankThatGivesUpIsNamedWithItsReason) {
  ledger_.GiveUp(absl::ResourceExhaustedError("no memory"), effects_);
  EXPECT_EQ(Effects(), "fail");
  EXPECT_EQ(ledger_.failure().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(Failure(), HasSubstr("rank 0 (a) cannot go on: no memory"));
  EXPECT_EQ(Culprit(), "a");
}

TEST_F(GroupLedgerTest, AFailedGroupNeverSaysThatACallDidNotCount) {
  ledger_.GiveUp(absl::InvalidArgumentError("a sparse gradient"), effects_);
  EXPECT_TRUE(absl::IsFailedPrecondition(ledger_.failure())) << ledger_.failure();
  EXPECT_THAT(Failure(), HasSubstr("rank 0 (a) cannot go on: a sparse gradient"));
}

TEST_F(GroupLedgerTest, ACallThatIsOverIsNotRevived) {
  Enter(Barrier());
  Enter(Barrier());
  for (int from : {1, 2}) Heard(from, 1, Barrier());
  EXPECT_THAT(Effects(), HasSubstr("complete 1"));
  EXPECT_TRUE(absl::IsInvalidArgument(ledger_.Heard(1, 1, 0, Barrier(), effects_).status()));
  for (int from : {1, 2}) Heard(from, 0, Barrier());
  EXPECT_THAT(Effects(), HasSubstr("complete 0"));
  for (uint64_t i = 2; i < 2 + 2 * GroupLedger::kMaxUnderWay; ++i) {
    Enter(Barrier());
    for (int from : {1, 2}) Heard(from, i, Barrier());
    EXPECT_THAT(Effects(), HasSubstr(absl::StrCat("complete ", i))) << "the group goes on";
  }
}

TEST_F(GroupLedgerTest, ARankThatLeavesAfterItsCallsHarmsNone) {
  Enter(Barrier());
  Heard(1, 0, Barrier());
  Effects();
  ledger_.Left(1, effects_);
  ledger_.Lost(1, absl::UnavailableError("its worker has stopped"), effects_);
  EXPECT_EQ(Effects(), "");
  Heard(2, 0, Barrier());
  EXPECT_EQ(Effects(), "complete 0");
  Enter(Barrier());
  EXPECT_EQ(Effects(), "fail");
  EXPECT_TRUE(absl::IsFailedPrecondition(ledger_.failure()));
  EXPECT_THAT(Failure(), HasSubstr("rank 1 (b) has left before call 1, barrier"));
}

TEST_F(GroupLedgerTest, WhatCompletesACallIsKeptAlthoughItFailsTheGroup) {
  for (uint64_t i = 0; i < GroupLedger::kMaxUnderWay; ++i) {
    Enter(AllReduce(4));
    Heard(1, i, AllReduce(4));
  }
  ledger_.Left(1, effects_);
  Enter(AllReduce(4));
  EXPECT_TRUE(ledger_.failure().ok());
  Effects();
  const absl::StatusOr<bool> keep = ledger_.Heard(2, 0, 0, AllReduce(4), effects_);
  EXPECT_TRUE(keep.ok() && *keep) << keep.status();
  EXPECT_EQ(Effects(), "complete 0, fail");
  EXPECT_THAT(Failure(), HasSubstr("rank 1 (b) has left before call 16"));
  const absl::StatusOr<bool> later = ledger_.Heard(2, 1, 0, AllReduce(4), effects_);
  EXPECT_TRUE(later.ok() && !*later) << "the group has failed before";
}

TEST_F(GroupLedgerTest, ARankWhoseDataHasComeMayLeaveBeforeItIsStored) {
  Enter(AllReduce(100));
  for (int rank : {1, 2}) Heard(rank, 0, AllReduce(100));
  for (int phase : {0, 1}) EXPECT_TRUE(ledger_.Arrived(1, 0, phase, 0, effects_).ok());
  ledger_.Left(1, effects_);
  EXPECT_TRUE(ledger_.failure().ok());
}

TEST_F(GroupLedgerTest, ARankThatLeavesBeforeACallFailsIt) {
  Enter(Barrier());
  ledger_.Left(2, effects_);
  EXPECT_EQ(Effects(), "tell 0, fail");
  EXPECT_THAT(Failure(), HasSubstr("rank 2 (c) has left before call 0"));
}

TEST_F(GroupLedgerTest, ARankThatLeavesInALargeCallBeforeThisOneBeginsFailsIt) {
  for (int rank : {1, 2}) Heard(rank, 0, AllReduce(100));
  ledger_.Left(1, effects_);
  EXPECT_TRUE(ledger_.failure().ok());
  Effects();
  Enter(AllReduce(100));
  EXPECT_EQ(Effects(), "fail");
  EXPECT_THAT(Failure(), HasSubstr("rank 1 (b) has left before call 0"));
}

TEST_F(GroupLedgerTest, AnOwnLeaveRefusesLaterCalls) {
  ledger_.Left(0, effects_);
  EXPECT_EQ(Effects(), "fail");
  EXPECT_THAT(Failure(), HasSubstr("rank 0 (a), this rank, has left"));
}

TEST_F(GroupLedgerTest, MessagesThatNoHonestRankSendsAreRefused) {
  const auto refused = [](const absl::Status& status) { return absl::IsInvalidArgument(status); };
  EXPECT_TRUE(
      refused(ledger_.Heard(1, 2 * GroupLedger::kMaxUnderWay, 0, Barrier(), effects_).status()));
  EXPECT_TRUE(refused(ledger_.Arrived(1, 0, 0, 0, effects_))) << "no call was made";
  Enter(AllReduce(100));
  Heard(1, 0, AllReduce(100));
  EXPECT_TRUE(refused(ledger_.Heard(1, 1, 2, Barrier(), effects_).status()))
      << "completed before it is made";
  EXPECT_TRUE(refused(ledger_.Heard(1, 0, 0, AllReduce(100), effects_).status())) << "twice";
  EXPECT_TRUE(refused(ledger_.Arrived(1, 0, 0, 9, effects_))) << "there is no such piece";
  EXPECT_TRUE(refused(ledger_.Arrived(1, 0, 2, 0, effects_))) << "there is no such phase";
  EXPECT_TRUE(ledger_.Arrived(1, 0, 0, 0, effects_).ok());
  EXPECT_TRUE(refused(ledger_.Arrived(1, 0, 0, 0, effects_))) << "twice";
  CollectiveCall root;
  root.operation = Operation::kBroadcast;
  root.root = 1;
  EXPECT_TRUE(refused(ledger_.Heard(1, 1, 0, root, effects_).status()))
      << "a root without a tensor";
  Enter(Barrier());
  for (int rank : {1, 2}) Heard(rank, 1, Barrier());
  EXPECT_TRUE(ledger_.failure().ok());
}

}  // namespace
}  // namespace psd::services
