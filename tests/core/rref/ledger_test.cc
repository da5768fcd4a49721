#include "core/base/buffer.h"
#include "core/base/memory_budget.h"
#include "core/rref/owner_ledger.h"
#include "core/rref/user_ledger.h"
#include "gtest/gtest.h"

namespace psd::rref {
namespace {

GlobalId Id(uint64_t counter) {
  return {7, counter};
}
constexpr SessionKey kSession{1, 1};
constexpr SessionKey kOther{2, 1};

TEST(OwnerLedger, RREF_18_ValueLivesUntilItsLastForkInAnyOrder) {
  OwnerLedger ledger;
  EXPECT_TRUE(ledger.AddFork(Id(1), Id(10), kSession));
  EXPECT_TRUE(ledger.AddFork(Id(1), Id(11), kOther));
  EXPECT_EQ(ledger.ForkCount(Id(1)), 2u);
  EXPECT_FALSE(ledger.DeleteFork(Id(1), Id(10), kSession));
  EXPECT_TRUE(ledger.DeleteFork(Id(1), Id(11), kOther));
  EXPECT_EQ(ledger.NumValues(), 0u);
  EXPECT_EQ(ledger.NumForks(), 0u);
}

TEST(OwnerLedger, RREF_31_RepeatsHaveNoEffect) {
  OwnerLedger ledger;
  EXPECT_TRUE(ledger.AddFork(Id(1), Id(10), kSession));
  EXPECT_TRUE(ledger.AddFork(Id(1), Id(10), kSession));
  EXPECT_EQ(ledger.ForkCount(Id(1)), 1u);
  EXPECT_TRUE(ledger.DeleteFork(Id(1), Id(10), kSession));
  EXPECT_FALSE(ledger.DeleteFork(Id(1), Id(10), kSession));
  EXPECT_FALSE(ledger.AddFork(Id(1), Id(10), kSession)) << "a repeat must not revive it";
  EXPECT_EQ(ledger.NumForks(), 0u);
}

TEST(OwnerLedger, ADeleteThatOvertakesItsAddWins) {
  OwnerLedger ledger;
  EXPECT_FALSE(ledger.DeleteFork(Id(1), Id(10), kSession));
  EXPECT_FALSE(ledger.AddFork(Id(1), Id(10), kSession));
  EXPECT_EQ(ledger.NumForks(), 0u);
}

TEST(OwnerLedger, RREF_33_TheEndOfASessionReleasesWhatItHeldAndFencesIt) {
  OwnerLedger ledger;
  ledger.AddFork(Id(1), Id(10), kSession);
  ledger.AddFork(Id(2), Id(11), kSession);
  ledger.AddFork(Id(2), Id(12), kOther);
  EXPECT_EQ(ledger.EndSession(kSession), std::vector<GlobalId>{Id(1)});
  EXPECT_EQ(ledger.ForkCount(Id(2)), 1u);
  EXPECT_FALSE(ledger.AddFork(Id(2), Id(13), kSession));
  EXPECT_FALSE(ledger.DeleteFork(Id(2), Id(12), kSession));
  EXPECT_TRUE(ledger.EndSession(kSession).empty());
  EXPECT_TRUE(ledger.AddFork(Id(2), Id(14), SessionKey{1, 2})) << "a new session is another one";
}

TEST(OwnerLedger, ForksOfASessionAreChargedUntilItEnds) {
  const auto memory = MemoryAccount::Create(size_t{64} << 10, NewHeapAllocator());
  OwnerLedger ledger(memory);
  uint64_t forks = 0;
  absl::Status room;
  while ((room = ledger.MakeRoom(kSession)).ok()) ledger.AddFork(Id(1), Id(10 + forks++), kSession);
  EXPECT_EQ(room.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_GE(memory->used_bytes(), size_t{64} << 10);
  EXPECT_EQ(forks, OwnerLedger::kOwnForks + 1024);
  EXPECT_TRUE(ledger.MakeRoom(kOther).ok()) << "the first forks of a session need no room";
  EXPECT_FALSE(ledger.DeleteFork(Id(1), Id(9), kSession)) << "nothing is remembered of it";
  EXPECT_FALSE(ledger.DeleteFork(Id(1), Id(10), kSession));
  ledger.EndSession(kSession);
  EXPECT_EQ(memory->used_bytes(), 0u);
}

TEST(OwnerLedger, ASessionCannotDeleteForksOfOthersOrOfOtherValues) {
  OwnerLedger ledger;
  ledger.AddFork(Id(1), Id(10), kSession);
  EXPECT_FALSE(ledger.DeleteFork(Id(1), Id(10), kOther));
  EXPECT_FALSE(ledger.DeleteFork(Id(2), Id(10), kSession));
  EXPECT_EQ(ledger.ForkCount(Id(1)), 1u);
}

TEST(OwnerLedger, MemoryOfDeletedForksIsBounded) {
  OwnerLedger ledger;
  for (uint64_t i = 0; i <= OwnerLedger::kMaxDeletedForks; ++i) {
    ledger.DeleteFork(Id(1), Id(100 + i), kSession);
  }
  EXPECT_TRUE(ledger.AddFork(Id(1), Id(100), kSession)) << "the oldest is forgotten";
  EXPECT_FALSE(ledger.AddFork(Id(1), Id(101), kSession));
}

void AddConfirmed(UserLedger& ledger, const std::string& owner, SessionKey session, GlobalId value,
                  GlobalId fork) {
  ledger.Add(owner, session.peer, value, fork);
  ledger.Confirm(fork, session);
}

TEST(UserLedger, AConfirmedForkIsReleasedOnceWhenDropped) {
  UserLedger ledger;
  AddConfirmed(ledger, "owner0", {5, 1}, Id(1), Id(10));
  EXPECT_TRUE(ledger.Check(Id(10)).ok());
  auto release = ledger.Drop(Id(10));
  ASSERT_TRUE(release.has_value());
  EXPECT_EQ(release->owner, "owner0");
  EXPECT_EQ(release->owner_incarnation, 5u);
  EXPECT_EQ(release->value, Id(1));
  EXPECT_FALSE(ledger.Drop(Id(10)).has_value());
  EXPECT_EQ(ledger.NumForks(), 0u);
  EXPECT_EQ(ledger.Check(Id(10)).code(), absl::StatusCode::kFailedPrecondition);
}

TEST(UserLedger, RREF_39_APendingForkIsReleasedWhenConfirmed) {
  UserLedger ledger;
  ledger.Add("owner0", 0, Id(1), Id(10));
  EXPECT_EQ(ledger.NumPending(), 1u);
  EXPECT_FALSE(ledger.Drop(Id(10)).has_value());
  EXPECT_EQ(ledger.NumForks(), 1u);
  auto release = ledger.Confirm(Id(10), {5, 1});
  ASSERT_TRUE(release.has_value());
  EXPECT_EQ(release->owner_incarnation, 5u);
  EXPECT_EQ(ledger.NumForks(), 0u);
  EXPECT_EQ(ledger.NumPending(), 0u);
}

TEST(UserLedger, RREF_27_RREF_26_AFailedCreationIsToldToEveryUse) {
  UserLedger ledger;
  ledger.Add("owner0", 0, Id(1), Id(10));
  EXPECT_FALSE(ledger.Fail(Id(10), absl::InvalidArgumentError("no"), false).has_value());
  EXPECT_EQ(ledger.Check(Id(10)).message(), "no");
  EXPECT_EQ(ledger.AddChild(Id(10), Id(20)).message(), "no");
  EXPECT_FALSE(ledger.Confirm(Id(10), {5, 1}).has_value());
  EXPECT_FALSE(ledger.Drop(Id(10)).has_value());
  EXPECT_EQ(ledger.NumForks(), 0u);
}

TEST(UserLedger, RREF_28_ACreationOfUnknownFateIsReleasedAllTheSame) {
  UserLedger ledger;
  ledger.Add("owner0", 0, Id(1), Id(10));
  EXPECT_TRUE(ledger.Fail(Id(10), absl::DeadlineExceededError("late"), true).has_value());
  EXPECT_FALSE(ledger.Drop(Id(10)).has_value());
  EXPECT_EQ(ledger.NumForks(), 0u);
}

TEST(UserLedger, RREF_19_AParentWaitsForItsChildren) {
  UserLedger ledger;
  AddConfirmed(ledger, "owner0", {5, 1}, Id(1), Id(10));
  EXPECT_TRUE(ledger.AddChild(Id(10), Id(20)).ok());
  EXPECT_TRUE(ledger.AddChild(Id(10), Id(21)).ok());
  EXPECT_EQ(ledger.AddChild(Id(10), Id(21)).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_FALSE(ledger.Drop(Id(10)).has_value());
  EXPECT_FALSE(ledger.ChildAccepted(Id(20)).has_value());
  EXPECT_FALSE(ledger.ChildAccepted(Id(20)).has_value()) << "a repeat";
  EXPECT_TRUE(ledger.ChildAccepted(Id(21)).has_value());
  EXPECT_EQ(ledger.NumForks(), 0u);
}

TEST(UserLedger, ALostSessionFailsTheForksOfThatSessionOnly) {
  UserLedger ledger;
  AddConfirmed(ledger, "owner0", {5, 1}, Id(1), Id(10));
  AddConfirmed(ledger, "owner0", {6, 1}, Id(1), Id(11));
  AddConfirmed(ledger, "owner0", {5, 2}, Id(2), Id(12));
  ledger.Add("owner0", 5, Id(3), Id(13));
  EXPECT_TRUE(ledger.AddChild(Id(10), Id(20)).ok());
  ledger.SessionLost({5, 1}, absl::AbortedError("restarted"));
  EXPECT_EQ(ledger.Check(Id(10)).message(), "restarted");
  EXPECT_TRUE(ledger.Check(Id(11)).ok());
  EXPECT_TRUE(ledger.Check(Id(12)).ok());
  EXPECT_TRUE(ledger.Check(Id(13)).ok());
  EXPECT_EQ(ledger.NumChildrenInFlight(), 0u);
  EXPECT_FALSE(ledger.Drop(Id(10)).has_value()) << "nothing left to release";
}

// The answer of a session may be handled after the notice of its loss.
TEST(UserLedger, AForkThatALostSessionCountedIsNotConfirmed) {
  UserLedger ledger;
  ledger.Add("owner0", 5, Id(1), Id(10));
  ledger.Add("owner0", 5, Id(2), Id(11));
  ledger.SessionLost({5, 1}, absl::AbortedError("lease"));
  EXPECT_FALSE(ledger.Confirm(Id(10), {5, 1}).has_value());
  EXPECT_EQ(ledger.state(Id(10)), ForkState::kFailed);
  EXPECT_EQ(ledger.Check(Id(10)).code(), absl::StatusCode::kAborted);
  EXPECT_FALSE(ledger.Drop(Id(10)).has_value()) << "the owner's fork ended with the session";
  ledger.Confirm(Id(11), {5, 2});
  EXPECT_TRUE(ledger.Check(Id(11)).ok());
}

TEST(UserLedger, RREF_35_ReleaseAllTellsEveryOwnerAndFailsTheHandles) {
  UserLedger ledger;
  AddConfirmed(ledger, "owner0", {5, 1}, Id(1), Id(10));
  ledger.Add("owner0", 0, Id(2), Id(11));
  EXPECT_EQ(ledger.ReleaseAll(absl::FailedPreconditionError("closed")).size(), 2u);
  EXPECT_EQ(ledger.Check(Id(10)).message(), "closed");
  EXPECT_FALSE(ledger.Confirm(Id(11), {5, 1}).has_value());
  EXPECT_FALSE(ledger.Drop(Id(10)).has_value());
  EXPECT_FALSE(ledger.Drop(Id(11)).has_value());
  EXPECT_EQ(ledger.NumForks(), 0u);
}

}  // namespace
}  // namespace psd::rref
