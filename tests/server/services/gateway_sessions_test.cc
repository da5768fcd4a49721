#include "server/services/gateway_sessions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/base/ids.h"
#include "core/base/memory_budget.h"
#include "core/base/status.h"

namespace psd::server {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

constexpr absl::Time kStart = absl::UnixEpoch();

absl::Status Admitted() {
  return absl::OkStatus();
}

GatewayOptions Options() {
  GatewayOptions options;
  options.lease = absl::Seconds(10);
  options.max_sessions = 3;
  options.max_contexts = 2;
  options.max_optimizers = 2;
  options.max_unacknowledged_answers = 4;
  options.max_unacknowledged_bytes = 100;
  return options;
}

class GatewaySessionsTest : public ::testing::Test {
 protected:
  GatewaySessionsTest() : sessions_(Options()) {
    EXPECT_TRUE(sessions_.Open(1, "python", "ipv4:10.0.0.1:1", kStart).ok());
  }

  absl::StatusOr<GatewaySessions::Start> Begin(uint64_t sequence, uint64_t acknowledged = 0,
                                               const char* method = "Step") {
    return sessions_.Begin(
        1, {sequence, acknowledged, method, absl::HashOf(absl::string_view(method))}, kStart,
        Admitted);
  }
  absl::StatusCode BeginCode(uint64_t sequence, uint64_t acknowledged = 0,
                             const char* method = "Step") {
    return Begin(sequence, acknowledged, method).status().code();
  }
  void Apply(uint64_t sequence, const std::string& reply) {
    auto start = Begin(sequence);
    ASSERT_TRUE(start.ok()) << start.status();
    EXPECT_TRUE(start->run);
    sessions_.Finish(1, sequence, {absl::OkStatus(), reply});
  }

  GatewaySessions sessions_;
};

TEST_F(GatewaySessionsTest, ARepeatedCallIsAnsweredFromMemory) {
  Apply(1, "one");
  auto again = Begin(1);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_FALSE(again->run);
  EXPECT_EQ(again->answer.reply, "one");
  EXPECT_TRUE(again->answer.status.ok());
}

TEST_F(GatewaySessionsTest, AnErrorIsAnAnswerToo) {
  ASSERT_TRUE(Begin(1)->run);
  sessions_.Finish(1, 1, {absl::NotFoundError("no such optimizer"), ""});
  auto again = Begin(1);
  ASSERT_TRUE(again.ok());
  EXPECT_FALSE(again->run);
  EXPECT_EQ(again->answer.status, absl::NotFoundError("no such optimizer"));
}

TEST_F(GatewaySessionsTest, ACallThatRunsIsNotRunAgain) {
  ASSERT_TRUE(Begin(1)->run);
  EXPECT_EQ(BeginCode(1), absl::StatusCode::kUnavailable);
  ASSERT_TRUE(Begin(2)->run) << "another number may overlap";
}

TEST_F(GatewaySessionsTest, NumbersAreNotReused) {
  Apply(1, "one");
  EXPECT_EQ(BeginCode(1, 0, "PushGradient"), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(BeginCode(0), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(BeginCode(2, 2), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(BeginCode(2, 7), absl::StatusCode::kInvalidArgument);
  ASSERT_TRUE(Begin(2, 1)->run);
  EXPECT_EQ(BeginCode(1), absl::StatusCode::kInvalidArgument) << "acknowledged, so never asked";
}

TEST_F(GatewaySessionsTest, UnacknowledgedAnswersAreBoundedAndNeverForgotten) {
  for (uint64_t i = 1; i <= 4; ++i) Apply(i, "x");
  EXPECT_EQ(BeginCode(5), absl::StatusCode::kResourceExhausted);
  EXPECT_FALSE(Begin(1)->run);
  EXPECT_TRUE(Begin(5, 2)->run);
  GatewaySessions large(Options());
  ASSERT_TRUE(large.Open(1, "a", "ipv4:10.0.0.1:1", kStart).ok());
  ASSERT_TRUE(large.Begin(1, {1, 0, "Step", 0}, kStart, Admitted)->run);
  large.Finish(1, 1, {absl::OkStatus(), std::string(101, 'x')});
  EXPECT_EQ(large.Begin(1, {2, 0, "Step", 0}, kStart, Admitted).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(large.Begin(1, {2, 1, "Step", 0}, kStart, Admitted)->run);
}

TEST_F(GatewaySessionsTest, TalkingRenewsTheLeaseAndSilenceEndsIt) {
  ASSERT_TRUE(sessions_.AddContext(1, 70).ok());
  ASSERT_TRUE(sessions_.AddContext(1, 71).ok());
  EXPECT_EQ(sessions_.AddContext(1, 72).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(sessions_.Renew(1, kStart + absl::Seconds(9)).ok());
  EXPECT_THAT(sessions_.Expire(kStart + absl::Seconds(18)), IsEmpty());
  auto expired = sessions_.Expire(kStart + absl::Seconds(19));
  ASSERT_THAT(expired, SizeIs(1));
  EXPECT_EQ(expired[0].client, "python");
  EXPECT_THAT(expired[0].contexts, UnorderedElementsAre(70, 71));
  const absl::Status gone = sessions_.Renew(1, kStart);
  EXPECT_EQ(gone.code(), absl::StatusCode::kAborted);
  EXPECT_THAT(std::string(gone.message()), HasSubstr("open a new session"));
  EXPECT_EQ(GetDetail(gone)->remedy, "open a new session");
}

TEST_F(GatewaySessionsTest, AnEndedLeaseIsNotRevivedBeforeItIsCollected) {
  EXPECT_EQ(sessions_.Renew(1, kStart + absl::Seconds(10)).code(), absl::StatusCode::kAborted);
  EXPECT_EQ(
      sessions_.Begin(1, {1, 0, "Step", 0}, kStart + absl::Seconds(11), Admitted).status().code(),
      absl::StatusCode::kAborted);
}

TEST_F(GatewaySessionsTest, ContextsBelongToTheirSession) {
  ASSERT_TRUE(sessions_.Open(2, "other", "ipv4:10.0.0.2:1", kStart).ok());
  ASSERT_TRUE(sessions_.AddContext(1, 70).ok());
  EXPECT_TRUE(sessions_.CheckContext(1, 70).ok());
  EXPECT_EQ(sessions_.CheckContext(2, 70).code(), absl::StatusCode::kNotFound);
  EXPECT_FALSE(sessions_.RemoveContext(2, 70));
  EXPECT_TRUE(sessions_.RemoveContext(1, 70));
  EXPECT_THAT(sessions_.Close(1)->contexts, IsEmpty());
  EXPECT_FALSE(sessions_.Close(1).has_value()) << "closing again is no error";
  EXPECT_EQ(sessions_.AddContext(1, 71).code(), absl::StatusCode::kAborted);
}

TEST_F(GatewaySessionsTest, SessionsAreBoundedAndNamed) {
  EXPECT_EQ(sessions_.Open(9, "", "ipv4:10.0.0.9:1", kStart).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(sessions_.Open(9, "a b", "ipv4:10.0.0.9:1", kStart).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(sessions_.Open(9, std::string(128, 'a'), "ipv4:10.0.0.9:1", kStart).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(sessions_.Open(2, "b", "ipv4:10.0.0.2:1", kStart).ok());
  EXPECT_TRUE(sessions_.Open(3, "c", "ipv4:10.0.0.3:1", kStart).ok());
  EXPECT_EQ(sessions_.Open(4, "d", "ipv4:10.0.0.4:1", kStart).code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(sessions_.List(kStart), SizeIs(3));
}

TEST(GatewaySessionsMemory, AFewCallsOfEachSessionFindRoomWhateverOthersHold) {
  GatewayOptions options = Options();
  options.max_unacknowledged_answers = 1000;
  options.memory = MemoryBudget::Create(size_t{4} << 20);
  const MemoryAccount& transit = *options.memory->transit();
  std::vector<MemoryCharge> filled;
  for (auto more = options.memory->transit()->Charge(512); more.ok();
       more = options.memory->transit()->Charge(512))
    filled.push_back(*std::move(more));
  const size_t before = transit.used_bytes();
  GatewaySessions sessions(options);
  ASSERT_TRUE(sessions.Open(1, "python", "ipv4:10.0.0.1:1", kStart).ok());
  EXPECT_GT(transit.used_bytes(), before);
  uint64_t sequence = 0;
  const auto call = [&](uint64_t acknowledged) {
    auto start = sessions.Begin(1, {++sequence, acknowledged, "Step", 0}, kStart, Admitted);
    if (start.ok()) sessions.Finish(1, sequence, {absl::OkStatus(), "done"});
    return start.status();
  };
  for (size_t i = 0; i < GatewaySessions::kOwnCalls; ++i) EXPECT_TRUE(call(0).ok());
  const absl::Status refused = call(0);
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("the budget is 4194304 bytes"));
  EXPECT_THAT(sessions.List(kStart).at(0).answers, GatewaySessions::kOwnCalls);
  EXPECT_TRUE(call(1).ok()) << "one was acknowledged";
  const uint64_t next = ++sequence;
  const auto repeat = [&] { return sessions.Begin(1, {next, 1, "Step", 0}, kStart, Admitted); };
  EXPECT_EQ(repeat().status().code(), absl::StatusCode::kResourceExhausted);
  filled.resize(filled.size() / 2);
  EXPECT_TRUE(repeat()->run) << "a refused call has changed nothing, so it may come again";
  sessions.Finish(1, next, {absl::OkStatus(), "done"});
  sessions.Close(1);
  filled.clear();
  EXPECT_EQ(transit.used_bytes(), 0u);
}

TEST(GatewaySessionsMemory, ACallThatWasGivenUpStaysChargedWhileItRuns) {
  GatewayOptions options = Options();
  options.max_unacknowledged_answers = 1000;
  options.memory = MemoryBudget::Create(size_t{64} << 20);
  GatewaySessions sessions(options);
  ASSERT_TRUE(sessions.Open(1, "python", "ipv4:10.0.0.1:1", kStart).ok());
  const size_t before = options.memory->transit()->used_bytes();
  for (uint64_t i = 1; i <= 100; ++i)
    ASSERT_TRUE(sessions.Begin(1, {i, i - 1, "Step", 0}, kStart, Admitted)->run);
  EXPECT_GE(options.memory->transit()->used_bytes(), before + (size_t{90} << 10));
  for (uint64_t i = 1; i <= 100; ++i) sessions.Finish(1, i, {absl::CancelledError(), ""});
  EXPECT_TRUE(sessions.Begin(1, {101, 100, "Step", 0}, kStart, Admitted)->run);
  EXPECT_LE(options.memory->transit()->used_bytes(), before + (size_t{8} << 10));
}

// One session takes no more than its own bytes and its first calls, so all of them fit into the
// memory reserved for small calls.
TEST(GatewaySessionsMemory, AllSessionsTogetherTakeSixKibibytesEach) {
  GatewayOptions options;
  options.memory = MemoryBudget::Create(size_t{1} << 30);
  GatewaySessions sessions(options);
  for (uint64_t id = 1; id <= options.max_sessions; ++id) {
    ASSERT_TRUE(sessions.Open(id, "python", absl::StrCat("ipv4:10.0.", id, ".1:1"), kStart).ok());
    for (uint64_t i = 1; i <= GatewaySessions::kOwnCalls; ++i)
      ASSERT_TRUE(sessions.Begin(id, {i, 0, "Step", 0}, kStart, Admitted)->run);
  }
  EXPECT_EQ(options.memory->transit()->used_bytes(), options.max_sessions * (size_t{6} << 10));
}

TEST(GatewaySessionsMemory, AFewContextsOfEachSessionFindRoomWhateverOthersHold) {
  GatewayOptions options = Options();
  options.max_contexts = 1000;
  options.memory = MemoryBudget::Create(size_t{4} << 20);
  const MemoryAccount& transit = *options.memory->transit();
  std::vector<MemoryCharge> filled;
  for (auto more = options.memory->transit()->Charge(512); more.ok();
       more = options.memory->transit()->Charge(512))
    filled.push_back(*std::move(more));
  GatewaySessions sessions(options);
  ASSERT_TRUE(sessions.Open(1, "python", "ipv4:10.0.0.1:1", kStart).ok());
  const size_t before = transit.used_bytes();
  for (size_t i = 0; i < GatewaySessions::kOwnCalls; ++i)
    EXPECT_TRUE(sessions.AddContext(1, i).ok());
  EXPECT_GT(transit.used_bytes(), before);
  EXPECT_EQ(sessions.AddContext(1, 100).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(sessions.CheckContext(1, 100).code(), absl::StatusCode::kNotFound);
  for (size_t i = 0; i < GatewaySessions::kOwnCalls; ++i) EXPECT_TRUE(sessions.RemoveContext(1, i));
  EXPECT_EQ(transit.used_bytes(), before);
}

TEST(GatewaySessionsShares, OneAddressFillsHalfAndNewcomersFromElsewhereComeIn) {
  GatewayOptions options = Options();
  options.max_sessions = 64;
  GatewaySessions sessions(options);
  GatewaySessions::SessionId id = 0;
  const auto open = [&](const std::string& peer) {
    return sessions.Open(++id, "python", peer, kStart);
  };
  absl::Status refused;
  for (int port = 1; refused.ok(); ++port) refused = open(absl::StrCat("ipv4:10.0.0.1:", port));
  EXPECT_EQ(sessions.size(), 33u);
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("33 of 64 sessions are open, 33 of them by the host of ipv4:10.0.0.1:34, "
                        "which may hold 31"));
  EXPECT_TRUE(open("ipv4:10.0.0.2:1").ok());
  for (int i = 0; refused.ok() || i == 0; ++i) refused = open("ipv4:10.0.0.3:1");
  EXPECT_THAT(std::string(refused.message()), HasSubstr("the connection from ipv4:10.0.0.3:1"));
  EXPECT_TRUE(open("ipv4:10.0.0.3:2").ok()) << "another connection of that host";
  sessions.Expire(kStart + options.lease);
  EXPECT_TRUE(open("ipv4:10.0.0.1:1").ok()) << "leases have ended";
}

// A client that gets ABORTED may start over, so nothing of its session may be applied after that.
TEST_F(GatewaySessionsTest, ASessionIsGoneOnlyWhenNothingOfItRuns) {
  Apply(1, "one");
  ASSERT_TRUE(Begin(2)->run);
  ASSERT_TRUE(Begin(3)->run);
  ASSERT_TRUE(sessions_.AddContext(1, 70).ok());
  EXPECT_EQ(sessions_.Client(1), "python");
  const GatewaySessions::Ended ended = *sessions_.Close(1);
  EXPECT_THAT(ended.contexts, UnorderedElementsAre(70));
  EXPECT_FALSE(sessions_.IsOpen(1));
  EXPECT_EQ(sessions_.AddContext(1, 71).code(), absl::StatusCode::kAborted);
  EXPECT_EQ(sessions_.Client(1), "");
  EXPECT_FALSE(sessions_.Close(1).has_value()) << "told once";
  for (uint64_t sequence : {2, 3}) {
    EXPECT_EQ(BeginCode(sequence), absl::StatusCode::kUnavailable);
    EXPECT_EQ(BeginCode(4), absl::StatusCode::kUnavailable);
    const absl::Status ending = sessions_.Renew(1, kStart);
    EXPECT_EQ(ending.code(), absl::StatusCode::kUnavailable);
    EXPECT_FALSE(GetDetail(ending)->remedy.empty());
    sessions_.Finish(1, sequence, {absl::OkStatus(), "late"});
  }
  EXPECT_EQ(BeginCode(2), absl::StatusCode::kAborted);
  EXPECT_EQ(sessions_.size(), 0u);
}

TEST_F(GatewaySessionsTest, ACallThatEndsBeforeAnotherDoesNotLetItsCallerStartOver) {
  ASSERT_TRUE(Begin(1)->run);
  ASSERT_TRUE(Begin(2)->run);
  sessions_.Close(1);
  const absl::Status aborted = absl::AbortedError("the session has ended");
  sessions_.Finish(1, 2, {aborted, ""});
  EXPECT_EQ(sessions_.AnswerOf(1, aborted).code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(sessions_.AnswerOf(1, absl::OkStatus()).ok());
  sessions_.Finish(1, 1, {absl::OkStatus(), ""});
  EXPECT_EQ(sessions_.AnswerOf(1, aborted), aborted);
}

TEST_F(GatewaySessionsTest, ASessionThatEndsKeepsItsPlaceUntilItIsGone) {
  ASSERT_TRUE(Begin(1)->run);
  ASSERT_TRUE(sessions_.Open(2, "b", "ipv4:10.0.0.2:1", kStart).ok());
  ASSERT_TRUE(sessions_.Open(3, "c", "ipv4:10.0.0.3:1", kStart).ok());
  sessions_.Close(1);
  EXPECT_EQ(sessions_.Open(4, "d", "ipv4:10.0.0.4:1", kStart).code(),
            absl::StatusCode::kResourceExhausted);
  sessions_.Finish(1, 1, {absl::OkStatus(), ""});
  EXPECT_TRUE(sessions_.Open(4, "d", "ipv4:10.0.0.4:1", kStart).ok());
}

TEST_F(GatewaySessionsTest, ALeaseThatEndsStopsWhatRuns) {
  ASSERT_TRUE(Begin(1)->run);
  const absl::Time late = kStart + absl::Seconds(11);
  EXPECT_EQ(sessions_.Renew(1, late).code(), absl::StatusCode::kUnavailable);
  const auto expired = sessions_.Expire(late);
  ASSERT_THAT(expired, SizeIs(1));
  EXPECT_EQ(expired[0].id, 1u);
  EXPECT_THAT(sessions_.Expire(late), IsEmpty()) << "told once";
  sessions_.Finish(1, 1, {absl::CancelledError(), ""});
  EXPECT_EQ(sessions_.Renew(1, late).code(), absl::StatusCode::kAborted);
}

TEST_F(GatewaySessionsTest, ARunningCallThatWasGivenUpStillKeepsItsSession) {
  ASSERT_TRUE(Begin(1)->run);
  ASSERT_TRUE(Begin(2, 1)->run) << "acknowledges what it has no answer to";
  sessions_.Finish(1, 2, {absl::OkStatus(), ""});
  sessions_.Close(1);
  EXPECT_EQ(sessions_.Renew(1, kStart).code(), absl::StatusCode::kUnavailable);
  sessions_.Finish(1, 1, {absl::OkStatus(), ""});
  EXPECT_EQ(sessions_.size(), 0u);
}

TEST_F(GatewaySessionsTest, ACallThatItsClientHasGivenUpDoesNotApplyIfItHasNotBegunTo) {
  for (uint64_t sequence : {1, 2, 3}) ASSERT_TRUE(Begin(sequence)->run);
  EXPECT_TRUE(sessions_.BeginApply(1, 1));
  EXPECT_FALSE(sessions_.TakeGivenUp(1));
  ASSERT_TRUE(Begin(4, 2)->run);
  EXPECT_TRUE(sessions_.TakeGivenUp(1));
  EXPECT_FALSE(sessions_.TakeGivenUp(1)) << "told once";
  EXPECT_FALSE(sessions_.BeginApply(1, 2)) << "it was acknowledged";
  EXPECT_TRUE(sessions_.BeginApply(1, 1)) << "it has begun before that";
  EXPECT_TRUE(sessions_.BeginApply(1, 3));
  EXPECT_EQ(BeginCode(5), absl::StatusCode::kResourceExhausted) << "four run";
  sessions_.Finish(1, 2, {absl::CancelledError(), ""});
  EXPECT_TRUE(Begin(5)->run);
  sessions_.Close(1);
  EXPECT_FALSE(sessions_.BeginApply(1, 5));
}

TEST_F(GatewaySessionsTest, AnotherRequestUnderTheSameNumberIsRefused) {
  const auto begin = [&](uint64_t fingerprint) {
    return sessions_.Begin(1, {1, 0, "Step", fingerprint}, kStart, Admitted);
  };
  ASSERT_TRUE(begin(1)->run);
  EXPECT_EQ(begin(2).status().code(), absl::StatusCode::kInvalidArgument) << "while it runs";
  sessions_.Finish(1, 1, {absl::OkStatus(), "answer"});
  const absl::Status refused = begin(2).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("was not applied"));
  EXPECT_EQ(begin(1)->answer.reply, "answer");
}

TEST_F(GatewaySessionsTest, ASessionRemembersTheLivesOfItsOptimizers) {
  EXPECT_TRUE(sessions_.LifeOf(1, "a").IsNone());
  ASSERT_TRUE(sessions_.JoinLife(1, "a", {5, 1}).ok());
  ASSERT_TRUE(sessions_.JoinLife(1, "b", {5, 2}).ok());
  EXPECT_EQ(sessions_.JoinLife(1, "c", {5, 3}).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(sessions_.JoinLife(1, "a", {5, 4}).ok()) << "it is no further one";
  EXPECT_EQ(sessions_.LifeOf(1, "a"), (GlobalId{5, 4}));
  EXPECT_EQ(sessions_.JoinLife(2, "a", {5, 1}).code(), absl::StatusCode::kAborted);
}

TEST_F(GatewaySessionsTest, LivesThatHaveEndedMakeRoomButKeepBeingRefused) {
  ASSERT_TRUE(sessions_.JoinLife(1, "a", {5, 1}).ok());
  ASSERT_TRUE(sessions_.JoinLife(1, "b", {5, 2}).ok());
  const GatewaySessions::Lives ended = sessions_.LivesOf(1);
  ASSERT_TRUE(sessions_.JoinLife(1, "b", {5, 9}).ok());
  sessions_.ForgetLives(1, ended);
  EXPECT_EQ(sessions_.LifeOf(1, "b"), (GlobalId{5, 9})) << "it was joined since";
  EXPECT_FALSE(sessions_.LifeOf(1, "a").IsNone()) << "none would be any life";
  EXPECT_NE(sessions_.LifeOf(1, "a"), (GlobalId{5, 1}));
  EXPECT_TRUE(sessions_.JoinLife(1, "c", {5, 3}).ok());
}

TEST_F(GatewaySessionsTest, OnlyCallsThatAreNoRepetitionsAskToBeAdmitted) {
  int asked = 0;
  const auto begin = [&](uint64_t sequence, const absl::Status& admitted) {
    return sessions_.Begin(1, {sequence, 0, "Step", 0}, kStart, [&] {
      ++asked;
      return admitted;
    });
  };
  const absl::Status draining = absl::UnavailableError("draining");
  ASSERT_TRUE(begin(1, absl::OkStatus())->run);
  EXPECT_EQ(asked, 1);
  EXPECT_EQ(begin(1, draining).status().code(), absl::StatusCode::kUnavailable) << "it runs";
  sessions_.Finish(1, 1, {absl::OkStatus(), "one"});
  EXPECT_EQ(begin(1, draining)->answer.reply, "one");
  EXPECT_EQ(asked, 1);
  EXPECT_EQ(begin(2, draining).status(), draining);
  EXPECT_EQ(asked, 2);
  EXPECT_TRUE(begin(2, absl::OkStatus())->run) << "a refused call has changed nothing";
}

// Random histories of a client that loses messages. Every number runs at most once.
TEST(GatewaySessionsRandom, NothingRunsTwice) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    std::mt19937_64 random(seed);
    GatewaySessions sessions(Options());
    ASSERT_TRUE(sessions.Open(1, "a", "ipv4:10.0.0.1:1", kStart).ok());
    std::set<uint64_t> ran;
    std::map<uint64_t, bool> running;
    for (int i = 0; i < 300; ++i) {
      const uint64_t sequence = 1 + random() % 30;
      if (random() % 3 == 0 && running[sequence]) {
        sessions.Finish(1, sequence, {absl::OkStatus(), absl::StrCat(sequence)});
        running[sequence] = false;
        continue;
      }
      auto start = sessions.Begin(
          1, {sequence, random() % 4 == 0 ? random() % sequence : 0, "Step", 0}, kStart, Admitted);
      if (!start.ok()) continue;
      if (start->run) {
        ASSERT_TRUE(ran.insert(sequence).second) << sequence << " ran twice";
        running[sequence] = true;
      } else {
        ASSERT_EQ(start->answer.reply, absl::StrCat(sequence));
      }
    }
  }
}

}  // namespace
}  // namespace psd::server
