#include "server/registrar/registrar_ledger.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace psd::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class RegistrarLedgerTest : public ::testing::Test {
 protected:
  RegistrarLedger::Joined Join(const std::string& name, Incarnation incarnation,
                               Role role = Role::kTrainer, uint32_t group_size = 0) {
    auto joined = ledger_.Join(name, incarnation, /*epoch=*/1, role, group_size, "");
    EXPECT_TRUE(joined.ok()) << joined.status();
    return joined.ok() ? *joined : RegistrarLedger::Joined{};
  }
  absl::Status JoinError(const std::string& name, Incarnation incarnation, Role role,
                         uint32_t group_size) {
    return ledger_.Join(name, incarnation, /*epoch=*/1, role, group_size, "").status();
  }

  RegistrarLedger ledger_;
};

TEST_F(RegistrarLedgerTest, RPC_08_RanksAreTheLowestFreeAndStay) {
  EXPECT_EQ(Join("a", 1).rank, 0u);
  EXPECT_EQ(Join("b", 2).rank, 1u);
  EXPECT_EQ(Join("c", 3).rank, 2u);
  ledger_.Leave("b", 2, 1);
  EXPECT_EQ(Join("d", 4).rank, 1u);
  const auto joined = Join("e", 5);
  EXPECT_EQ(joined.rank, 3u);
  EXPECT_EQ(joined.world_size, 4u);
  const auto world = ledger_.World();
  ASSERT_THAT(world, SizeIs(4));
  for (size_t i = 0; i < world.size(); ++i) EXPECT_EQ(world[i].rank, i);
  EXPECT_EQ(world[1].name, "d");
}

// A registrar that was restarted meets its members in any order.
TEST_F(RegistrarLedgerTest, WhoJoinsAgainGetsItsFormerRankUnlessSomebodyHasIt) {
  const auto rank = [&](const std::string& name, Incarnation incarnation, uint32_t former) {
    auto joined = ledger_.Join(name, incarnation, /*epoch=*/1, Role::kTrainer, 0, "", former);
    EXPECT_TRUE(joined.ok()) << joined.status();
    return joined->rank;
  };
  EXPECT_EQ(rank("c", 3, 2), 2u);
  EXPECT_EQ(Join("new", 9).rank, 0u);
  EXPECT_EQ(rank("b", 2, 1), 1u);
  EXPECT_EQ(rank("a", 1, 0), 3u) << "its rank was given to another";
  EXPECT_EQ(rank("a", 1, 7), 3u) << "a member keeps the rank that it has";
  EXPECT_EQ(rank("far", 4, RegistrarLedger::kMaxMembers), 4u);
  EXPECT_EQ(rank("last", 5, RegistrarLedger::kMaxMembers - 1), RegistrarLedger::kMaxMembers - 1);
}

TEST_F(RegistrarLedgerTest, ALostOwnerIsRememberedUntilItJoinsAgain) {
  Join("owner1", 1, Role::kOwner);
  Join("owner2", 2, Role::kOwner);
  Join("trainer", 3);
  ledger_.Leave("owner1", 1, 1, Departure::kLost);
  ledger_.Leave("owner2", 2, 1, Departure::kOrderly);
  ledger_.Leave("trainer", 3, 1, Departure::kLost);
  EXPECT_THAT(ledger_.lost_owners(), ElementsAre("owner1"));
  Join("owner1", 4, Role::kTrainer);
  EXPECT_THAT(ledger_.lost_owners(), ElementsAre("owner1")) << "a trainer has none of its values";
  Join("owner1", 5, Role::kOwner);
  EXPECT_THAT(ledger_.lost_owners(), IsEmpty());
  ledger_.Leave("owner1", 4, 1, Departure::kLost);
  EXPECT_THAT(ledger_.lost_owners(), IsEmpty()) << "that was its former incarnation";
}

TEST_F(RegistrarLedgerTest, LostOwnersAreBounded) {
  for (size_t i = 0; i <= RegistrarLedger::kMaxLostOwners; ++i) {
    const std::string name = absl::StrCat("owner", i);
    Join(name, i + 1, Role::kOwner);
    ledger_.Leave(name, i + 1, 1, Departure::kLost);
  }
  EXPECT_THAT(ledger_.lost_owners(), SizeIs(RegistrarLedger::kMaxLostOwners));
}

TEST_F(RegistrarLedgerTest, JoiningAgainChangesNothing) {
  EXPECT_TRUE(Join("a", 1).new_member);
  EXPECT_FALSE(Join("a", 1).new_member);
  EXPECT_THAT(ledger_.World(), SizeIs(1));
}

TEST_F(RegistrarLedgerTest, TheEndOfAnEarlierSessionDoesNotRemoveWhoHasJoinedInALaterOne) {
  ASSERT_TRUE(ledger_.Join("a", 1, /*epoch=*/3, Role::kTrainer, 2, "").ok());
  ASSERT_TRUE(ledger_.Join("a", 1, /*epoch=*/5, Role::kTrainer, 2, "").ok());
  ledger_.Leave("a", 1, 3);
  EXPECT_THAT(ledger_.World(), SizeIs(1)) << "the notice was late";
  ASSERT_TRUE(ledger_.Join("a", 1, /*epoch=*/3, Role::kTrainer, 2, "").ok());
  ledger_.Leave("a", 1, 3);
  EXPECT_THAT(ledger_.World(), SizeIs(1)) << "so was the request";
  ledger_.Leave("a", 1, 5);
  EXPECT_THAT(ledger_.World(), IsEmpty());
}

TEST_F(RegistrarLedgerTest, ARequestToJoinOfAnEarlierSessionChangesNothing) {
  ASSERT_TRUE(ledger_.Join("a", 1, /*epoch=*/5, Role::kOwner, 0, "host:5").ok());
  const auto late = ledger_.Join("a", 1, /*epoch=*/3, Role::kTrainer, 4, "host:3");
  ASSERT_TRUE(late.ok()) << late.status();
  EXPECT_FALSE(late->new_member);
  ASSERT_THAT(ledger_.World(), SizeIs(1));
  EXPECT_EQ(ledger_.World()[0].role, Role::kOwner);
  EXPECT_EQ(ledger_.World()[0].address, "host:5");
  EXPECT_EQ(ledger_.group_size(), 0u);
}

TEST_F(RegistrarLedgerTest, ABarrierCallOfAnEarlierSessionDoesNotMeetTheOthers) {
  Join("b", 2);
  ASSERT_TRUE(ledger_.Join("a", 1, /*epoch=*/5, Role::kTrainer, 0, "").ok());
  EXPECT_THAT(ledger_.EnterBarrier(1, "b", 2, /*epoch=*/1, "x", {"a", "b"}), IsEmpty());
  const auto late = ledger_.EnterBarrier(2, "a", 1, /*epoch=*/3, "x", {"a", "b"});
  ASSERT_THAT(late, SizeIs(1));
  EXPECT_EQ(late[0].ticket, 2u);
  EXPECT_EQ(late[0].status.code(), absl::StatusCode::kAborted) << late[0].status;
  EXPECT_EQ(ledger_.waiting(), 1u) << "the other still waits";
  const auto met = ledger_.EnterBarrier(3, "a", 1, /*epoch=*/5, "x", {"a", "b"});
  ASSERT_THAT(met, SizeIs(2));
  EXPECT_TRUE(met[0].status.ok() && met[1].status.ok());
}

TEST_F(RegistrarLedgerTest, ACallThatWaitsFailsWhenItsMemberJoinsInALaterSession) {
  Join("a", 1);
  Join("b", 2);
  EXPECT_THAT(ledger_.EnterBarrier(1, "a", 1, /*epoch=*/1, "x", {"a", "b"}), IsEmpty());
  EXPECT_THAT(ledger_.EnterBarrier(2, "b", 2, /*epoch=*/1, "y", {"a", "b"}), IsEmpty());
  const auto again = ledger_.Join("a", 1, /*epoch=*/2, Role::kTrainer, 0, "");
  ASSERT_TRUE(again.ok()) << again.status();
  ASSERT_THAT(again->answers, SizeIs(1));
  EXPECT_EQ(again->answers[0].ticket, 1u);
  EXPECT_EQ(again->answers[0].status.code(), absl::StatusCode::kAborted);
  EXPECT_THAT(ledger_.EnterBarrier(3, "b", 2, /*epoch=*/1, "x", {"a", "b"}), IsEmpty())
      << "nobody of the later session is there yet";
  EXPECT_THAT(ledger_.EnterBarrier(4, "a", 1, /*epoch=*/2, "x", {"a", "b"}), SizeIs(2));
  EXPECT_THAT(ledger_.EnterBarrier(5, "a", 1, /*epoch=*/2, "y", {"a", "b"}), SizeIs(2))
      << "the other's barrier did not fail";
}

TEST_F(RegistrarLedgerTest, WhoHasMetCannotWithdraw) {
  Join("a", 1);
  Join("b", 2);
  EXPECT_THAT(ledger_.EnterBarrier(1, "a", 1, /*epoch=*/1, "x", {"a", "b"}), IsEmpty());
  EXPECT_THAT(ledger_.EnterBarrier(2, "b", 2, /*epoch=*/1, "x", {"a", "b"}), SizeIs(2));
  EXPECT_FALSE(ledger_.Withdraw(1));
  EXPECT_THAT(ledger_.EnterBarrier(3, "a", 1, /*epoch=*/1, "x", {"a", "b"}), IsEmpty());
  EXPECT_TRUE(ledger_.Withdraw(3));
}

TEST_F(RegistrarLedgerTest, ANewIncarnationTakesNameAndRankAndFencesTheOld) {
  Join("x", 1);
  EXPECT_EQ(Join("a", 2).rank, 1u);
  const auto joined = Join("a", 3);
  EXPECT_EQ(joined.rank, 1u);
  EXPECT_TRUE(joined.new_member);
  EXPECT_THAT(ledger_.Leave("a", 2, 1), IsEmpty());
  EXPECT_THAT(ledger_.World(), SizeIs(2)) << "the old incarnation's end is no longer heard";
  absl::Status refused = JoinError("a", 2, Role::kTrainer, 0);
  EXPECT_EQ(refused.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(refused.message()), HasSubstr(IncarnationToString(2)));
  EXPECT_THAT(std::string(refused.message()), HasSubstr(IncarnationToString(3)));
  EXPECT_FALSE(GetDetail(refused)->remedy.empty());
}

// The session rules refuse a newcomer while the session of the name's holder is alive. Here that
// session has ended before another worker asks for the name, for example because its lease ended.
TEST_F(RegistrarLedgerTest, RPC_03_WhoLeftIsFencedOnceAnotherTookItsName) {
  Join("a", 1);
  ledger_.Leave("a", 1, 1);
  Join("a", 1);  // comes back in a new session and still has its name
  ledger_.Leave("a", 1, 1);
  Join("a", 2);
  ledger_.Leave("a", 2, 1);
  absl::Status refused = JoinError("a", 1, Role::kTrainer, 0);
  EXPECT_EQ(refused.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(refused.message()), HasSubstr(IncarnationToString(1)));
  Join("a", 2);
}

TEST_F(RegistrarLedgerTest, RPC_63_TrainersAgreeOnTheGroupSize) {
  Join("owner0", 1, Role::kOwner);
  Join("t0", 2, Role::kTrainer, 2);
  EXPECT_EQ(ledger_.group_size(), 2u);
  absl::Status other = JoinError("t1", 3, Role::kTrainer, 3);
  EXPECT_EQ(other.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(other.message()), HasSubstr("group of 3"));
  EXPECT_FALSE(GetDetail(other)->remedy.empty());
  EXPECT_EQ(JoinError("t1", 3, Role::kTrainer, 0).code(), absl::StatusCode::kFailedPrecondition)
      << "a dynamic member in a declared group";
  Join("t1", 3, Role::kTrainer, 2);
  const absl::Status full = JoinError("t2", 4, Role::kTrainer, 2);
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_FALSE(GetDetail(full)->remedy.empty());
  Join("owner1", 5, Role::kOwner);   // an owner is not counted
  Join("t1", 6, Role::kTrainer, 2);  // a trainer that comes back is not counted again
  ledger_.Leave("t0", 2, 1);
  ledger_.Leave("t1", 6, 1);
  EXPECT_EQ(ledger_.group_size(), 0u) << "the next group declares its own";
  Join("t9", 7, Role::kTrainer, 5);
}

TEST_F(RegistrarLedgerTest, RPC_53_ABarrierCompletesWhenAllHaveArrived) {
  Join("a", 1);
  Join("b", 2);
  Join("c", 3);
  EXPECT_THAT(ledger_.EnterBarrier(10, "a", 1, /*epoch=*/1, "x", {"a", "b"}), IsEmpty());
  EXPECT_THAT(ledger_.EnterBarrier(11, "c", 3, /*epoch=*/1, "x", {"c", "b"}), IsEmpty())
      << "another set";
  EXPECT_THAT(ledger_.EnterBarrier(12, "b", 2, /*epoch=*/1, "y", {"b", "a"}), IsEmpty())
      << "another name";
  const auto answers = ledger_.EnterBarrier(13, "b", 2, /*epoch=*/1, "x", {"b", "a"});
  ASSERT_THAT(answers, SizeIs(2));
  EXPECT_EQ(answers[0].ticket, 10u);
  EXPECT_EQ(answers[1].ticket, 13u);
  EXPECT_TRUE(answers[0].status.ok() && answers[1].status.ok());
  EXPECT_EQ(ledger_.waiting(), 2u);
  EXPECT_THAT(ledger_.EnterBarrier(14, "c", 3, /*epoch=*/1, "z", {"c"}), SizeIs(1))
      << "a set of one";
}

TEST_F(RegistrarLedgerTest, RPC_53_SeveralThreadsOfAMemberMeetInOrder) {
  Join("a", 1);
  Join("b", 2);
  EXPECT_THAT(ledger_.EnterBarrier(1, "a", 1, /*epoch=*/1, "x", {"a", "b"}), IsEmpty());
  EXPECT_THAT(ledger_.EnterBarrier(2, "a", 1, /*epoch=*/1, "x", {"a", "b"}), IsEmpty());
  auto first = ledger_.EnterBarrier(3, "b", 2, /*epoch=*/1, "x", {"a", "b"});
  ASSERT_THAT(first, SizeIs(2));
  EXPECT_EQ(first[0].ticket, 1u);
  auto second = ledger_.EnterBarrier(4, "b", 2, /*epoch=*/1, "x", {"a", "b"});
  ASSERT_THAT(second, SizeIs(2));
  EXPECT_EQ(second[0].ticket, 2u);
  EXPECT_EQ(ledger_.waiting(), 0u);
}

TEST_F(RegistrarLedgerTest, TheDeclaredGroupIsWaitedForWhoeverItIs) {
  Join("owner0", 1, Role::kOwner);
  Join("t0", 2, Role::kTrainer, 2);
  EXPECT_THAT(ledger_.EnterBarrier(1, "t0", 2, /*epoch=*/1, "", {}), IsEmpty())
      << "t1 has not even joined";
  Join("t1", 3, Role::kTrainer, 2);
  EXPECT_THAT(ledger_.EnterBarrier(2, "t1", 3, /*epoch=*/1, "", {}), SizeIs(2));
  EXPECT_THAT(ledger_.EnterBarrier(3, "t0", 2, /*epoch=*/1, "", {}), IsEmpty());
  auto failed = ledger_.Leave("t1", 3, 1);
  ASSERT_THAT(failed, SizeIs(1));
  EXPECT_EQ(failed[0].status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(failed[0].status.message()), HasSubstr("t1"));
}

TEST_F(RegistrarLedgerTest, BarrierMistakes) {
  Join("owner0", 1, Role::kOwner);
  Join("t0", 2);
  auto code = [&](const std::string& name, Incarnation incarnation,
                  const std::vector<std::string>& members) {
    auto answers = ledger_.EnterBarrier(9, name, incarnation, /*epoch=*/1, "x", members);
    EXPECT_THAT(answers, SizeIs(1));
    return answers.empty() ? absl::StatusCode::kOk : answers[0].status.code();
  };
  EXPECT_EQ(code("stranger", 7, {"stranger"}), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(code("t0", 99, {"t0"}), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(code("t0", 2, {}), absl::StatusCode::kFailedPrecondition) << "nothing declared";
  EXPECT_EQ(code("t0", 2, {"owner0"}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code("t0", 2, {"t0", "t0"}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code("t0", 2, {"t0", "t1"}), absl::StatusCode::kNotFound);
  EXPECT_EQ(ledger_.waiting(), 0u);
}

TEST_F(RegistrarLedgerTest, NamesAndSetsOfBarriersAreBoundedAndCountedOnce) {
  Join("a", 1, Role::kTrainer);
  Join("b", 2, Role::kTrainer);
  const std::vector<std::string> both = {"a", "b"};
  const std::string one(RegistrarLedger::kMaxKeyBytes / 2 + 1, 'x');
  const std::string other(one.size(), 'y');
  EXPECT_TRUE(ledger_.EnterBarrier(1, "a", 1, /*epoch=*/1, one, both).empty());
  EXPECT_TRUE(ledger_.EnterBarrier(2, "a", 1, /*epoch=*/1, one, both).empty())
      << "another call to the same";
  const auto refused = ledger_.EnterBarrier(3, "b", 2, /*epoch=*/1, other, both);
  ASSERT_EQ(refused.size(), 1u);
  EXPECT_EQ(refused[0].status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ledger_.EnterBarrier(4, "b", 2, /*epoch=*/1, one, both).size(), 2u);
  EXPECT_TRUE(ledger_.Withdraw(2));
  EXPECT_TRUE(ledger_.EnterBarrier(5, "b", 2, /*epoch=*/1, other, both).empty());
}

TEST_F(RegistrarLedgerTest, RPC_54_WhoGivesUpIsNotAnsweredAndDoesNotCount) {
  Join("a", 1);
  Join("b", 2);
  EXPECT_THAT(ledger_.EnterBarrier(1, "a", 1, /*epoch=*/1, "x", {"a", "b"}), IsEmpty());
  EXPECT_EQ(ledger_.Missing(1), std::vector<std::string>{"b"});
  ledger_.Withdraw(1);
  EXPECT_EQ(ledger_.Missing(1), std::nullopt);
  ledger_.Withdraw(1);
  ledger_.Withdraw(77);
  EXPECT_THAT(ledger_.EnterBarrier(2, "b", 2, /*epoch=*/1, "x", {"a", "b"}), IsEmpty());
  EXPECT_EQ(ledger_.waiting(), 1u);
}

// Random histories. The guarantees of the header hold after every event.
class RandomHistory {
 public:
  explicit RandomHistory(uint64_t seed) : random_(seed) {}

  void Run(int events) {
    for (int i = 0; i < events && !::testing::Test::HasFailure(); ++i) {
      Event();
      Check();
    }
    for (auto& [name, incarnation] : alive_) Note(ledger_.Leave(name, incarnation, 1));
    EXPECT_THAT(waiting_, IsEmpty()) << "somebody was never answered";
    EXPECT_EQ(ledger_.waiting(), 0u);
    EXPECT_EQ(ledger_.size(), 0u);
  }

 private:
  uint64_t Below(uint64_t bound) { return random_() % bound; }
  std::string Name() { return absl::StrCat("w", Below(6)); }

  void Event() {
    const std::string name = Name();
    const bool alive = alive_.count(name) != 0;
    switch (Below(6)) {
      case 0:
        return Join(name, alive && Below(2) == 0 ? alive_[name] : ++last_incarnation_);
      case 1:
        if (alive) Note(ledger_.Leave(name, alive_[name], 1));
        alive_.erase(name);
        return;
      case 2:  // the end of another incarnation than the present one
        return Note(ledger_.Leave(name, last_incarnation_ + 1000, 1));
      case 3:
        if (!waiting_.empty()) {
          ledger_.Withdraw(*waiting_.begin());
          waiting_.erase(waiting_.begin());
        }
        return;
      default:
        return Enter(name, alive ? alive_[name] : 1);
    }
  }

  void Join(const std::string& name, Incarnation incarnation) {
    auto joined = ledger_.Join(name, incarnation, 1, Role::kTrainer, 0, "");
    ASSERT_TRUE(joined.ok()) << joined.status();
    Note(joined->answers);
    auto rank = ranks_.find(name);
    if (alive_.count(name) != 0 && rank != ranks_.end()) {
      EXPECT_EQ(joined->rank, rank->second);
    }
    alive_[name] = incarnation;
    ranks_[name] = joined->rank;
  }

  void Enter(const std::string& name, Incarnation incarnation) {
    std::set<std::string> members = {name, Name(), Name()};
    waiting_.insert(++last_ticket_);
    Note(ledger_.EnterBarrier(last_ticket_, name, incarnation, /*epoch=*/1,
                              Below(2) == 0 ? "x" : "y", {members.begin(), members.end()}));
  }

  void Note(const RegistrarLedger::Answers& answers) {
    for (const RegistrarLedger::Answer& answer : answers)
      EXPECT_EQ(waiting_.erase(answer.ticket), 1u) << "answered twice: " << answer.ticket;
  }

  void Check() {
    std::set<uint32_t> ranks;
    const auto world = ledger_.World();
    EXPECT_EQ(world.size(), alive_.size());
    for (const Member& member : world) {
      EXPECT_TRUE(ranks.insert(member.rank).second);
      EXPECT_EQ(member.incarnation, alive_[member.name]);
    }
    EXPECT_EQ(ledger_.waiting(), waiting_.size());
  }

  std::mt19937_64 random_;
  RegistrarLedger ledger_;
  std::map<std::string, Incarnation> alive_;
  std::map<std::string, uint32_t> ranks_;
  std::set<RegistrarLedger::Ticket> waiting_;
  Incarnation last_incarnation_ = 100;
  RegistrarLedger::Ticket last_ticket_ = 0;
};

TEST(RegistrarLedgerRandom, GuaranteesHoldInRandomHistories) {
  for (uint64_t seed = 1; seed <= 300 && !::testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    RandomHistory(seed).Run(300);
  }
}

}  // namespace
}  // namespace psd::server
