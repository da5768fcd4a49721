#include "core/rref/rref_context.h"

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "core/base/clock.h"
#include "core/base/status.h"
#include "core/base/timer.h"
#include "gtest/gtest.h"
#include "tests/core/fake_rpc.h"
#include "tests/core/store/changing_for_tests.h"

namespace psd::rref {
namespace {

using psd::testing::FakeAgent;
using psd::testing::FakeNetwork;

struct TestWorker {
  TestWorker(FakeNetwork& network, const std::string& name, Incarnation incarnation)
      : ids(incarnation), agent(network, {name, incarnation}) {
    store::StoreOptions options;
    options.memory = MemoryAccount::Create(0, NewHeapAllocator());
    store = store::Store::Create(std::move(options), ids);
    rrefs = RRefContext::Create(agent, *store, ids, clock, timers);
  }
  store::EntryPtr Put() { return *store->Put(store::Value(5), /*requires_grad=*/false); }

  FakeClock clock;
  TimerQueue timers{clock};
  IdSource ids;
  FakeAgent agent;
  std::unique_ptr<store::Store> store;
  std::unique_ptr<RRefContext> rrefs;
};

class RRefContextTest : public ::testing::Test {
 protected:
  RRef Fetch(const store::EntryPtr& entry) {
    return *user_.rrefs->AdoptFork(
        *owner_.rrefs->ForkFor(entry, user_.agent.self(), user_.agent.epoch()),
        user_.agent.epoch());
  }
  // Begin: the owner begins to create the value that the user asked for. End: it has created it.
  absl::Status Begin(const RRef& rref) {
    return owner_.rrefs->BeginCreation(rref.value_id(), rref.body()->fork_id(), user_.agent.self(),
                                       user_.agent.epoch());
  }
  void End(GlobalId value) {
    ASSERT_TRUE(owner_.store->Put(value, store::Value(1), false).ok());
    owner_.rrefs->EndCreation(value, absl::OkStatus());
  }

  FakeNetwork network_;
  TestWorker owner_{network_, "owner0", 1};
  TestWorker user_{network_, "trainer0", 2};
};

TEST_F(RRefContextTest, RREF_01_ALocalRRefSendsNothingAndFreesItsValueWithTheLastHandle) {
  store::EntryPtr entry = owner_.Put();
  RRef rref = owner_.rrefs->LocalRRef(entry);
  RRef copy = rref, second = owner_.rrefs->LocalRRef(entry);
  EXPECT_TRUE(rref.is_owner());
  EXPECT_EQ(owner_.rrefs->stats().owners, 0u);
  rref = copy = RRef();
  EXPECT_TRUE(owner_.store->Get(entry->id).ok());
  second = RRef();
  EXPECT_FALSE(owner_.store->Get(entry->id).ok());
  EXPECT_FALSE(network_.RunOne());
}

TEST_F(RRefContextTest, RREF_17_AForkKeepsTheValueUntilItsRelease) {
  store::EntryPtr entry = owner_.Put();
  RRef local = owner_.rrefs->LocalRRef(entry);
  RRef fork = Fetch(entry);
  EXPECT_FALSE(fork.is_owner());
  EXPECT_EQ(fork.owner(), "owner0");
  EXPECT_TRUE(fork.body()->confirmed().IsReady());
  local = RRef();
  EXPECT_TRUE(owner_.store->Get(entry->id).ok());
  EXPECT_EQ(owner_.rrefs->stats().forks, 1u);
  fork = RRef();
  network_.RunAll();
  EXPECT_EQ(owner_.rrefs->stats().forks, 0u);
  EXPECT_EQ(user_.rrefs->stats().users, 0u);
  EXPECT_FALSE(owner_.store->Get(entry->id).ok());
}

TEST_F(RRefContextTest, RREF_16_AHandleOfTheOwnerKeepsTheValueAfterTheLastFork) {
  store::EntryPtr entry = owner_.Put();
  RRef local = owner_.rrefs->LocalRRef(entry);
  Fetch(entry);
  network_.RunAll();
  EXPECT_EQ(owner_.rrefs->stats().owners, 0u);
  EXPECT_TRUE(owner_.store->Get(entry->id).ok());
}

TEST_F(RRefContextTest, ManyReleasesTravelTogether) {
  store::EntryPtr entry = owner_.Put();
  RRef local = owner_.rrefs->LocalRRef(entry);
  std::vector<RRef> forks;
  for (int i = 0; i < 1000; ++i) forks.push_back(Fetch(entry));
  EXPECT_EQ(owner_.rrefs->stats().forks, 1000u);
  forks.clear();
  EXPECT_EQ(user_.rrefs->stats().releases, 1000u);
  network_.RunAll();
  EXPECT_EQ(owner_.rrefs->stats().forks, 0u);
  EXPECT_EQ(user_.rrefs->stats().releases, 0u);
  // The first release travels alone and the rest in messages of 128, so that no message keeps the
  // owner busy for long.
  EXPECT_EQ(network_.Count("rref.release"), 9);
}

TEST_F(RRefContextTest, TheOwnerRestsBetweenMessagesOfManyReleases) {
  store::EntryPtr entry = owner_.Put();
  std::vector<RRef> forks;
  for (int i = 0; i < 600; ++i) forks.push_back(Fetch(entry));
  forks.clear();
  user_.clock.Advance(absl::Milliseconds(1));
  network_.RunAll();
  EXPECT_EQ(network_.Count("rref.release"), 1) << "the first at once";
  user_.clock.Advance(absl::Microseconds(1500));
  user_.timers.Poll();
  while (!network_.RunOne()) std::this_thread::yield();
  EXPECT_EQ(network_.Count("rref.release"), 2);
  user_.clock.Advance(absl::Milliseconds(1));
  network_.RunAll();
  EXPECT_EQ(user_.rrefs->stats().releases, 471u);
  user_.rrefs->ReleaseAll();
  network_.RunAll();
  EXPECT_EQ(owner_.rrefs->stats().forks, 0u) << "who leaves does not wait";
}

TEST_F(RRefContextTest, RREF_02_RREF_22_ACreationIsPendingUntilItsAnswer) {
  RRef rref = user_.rrefs->NewUserRRef("owner0", 0);
  EXPECT_FALSE(rref.body()->confirmed().IsReady());
  EXPECT_EQ(user_.rrefs->stats().pending_users, 1u);
  EXPECT_TRUE(user_.rrefs->CheckUsable(rref).ok());
  ASSERT_TRUE(Begin(rref).ok());
  End(rref.value_id());
  user_.rrefs->Created(rref, 1, user_.agent.epoch());
  EXPECT_TRUE(rref.body()->confirmed().Wait().ok());
  EXPECT_EQ(rref.body()->owner_incarnation(), 1u);
  GlobalId value = rref.value_id();
  rref = RRef();
  network_.RunAll();
  EXPECT_FALSE(owner_.store->Get(value).ok());
}

TEST_F(RRefContextTest, RREF_26_RREF_28_AFailedCreationIsToldAndReleasedIfItMayExist) {
  RRef rref = user_.rrefs->NewUserRRef("owner0", 0);
  ASSERT_TRUE(Begin(rref).ok());
  End(rref.value_id());
  user_.rrefs->CreationFailed(rref, absl::DeadlineExceededError("too late"), true);
  EXPECT_EQ(user_.rrefs->CheckUsable(rref).code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(rref.body()->confirmed().Wait().status().code(), absl::StatusCode::kDeadlineExceeded);
  network_.RunAll();
  EXPECT_FALSE(owner_.store->Get(rref.value_id()).ok());
}

TEST_F(RRefContextTest, RREF_33_TheUsersSessionTakesItsForksAlong) {
  store::EntryPtr entry = owner_.Put();
  RRef fork = Fetch(entry);
  network_.EndSessionsOf("trainer0");
  EXPECT_EQ(owner_.rrefs->stats().forks, 0u);
  EXPECT_FALSE(owner_.store->Get(entry->id).ok());
  EXPECT_EQ(user_.rrefs->CheckUsable(fork).code(), absl::StatusCode::kAborted);
  EXPECT_EQ(owner_.rrefs->BeginCreation(entry->id, {2, 99}, user_.agent.self(), 1).code(),
            absl::StatusCode::kAborted);
}

TEST_F(RRefContextTest, NamedValuesOutliveTheirForks) {
  auto made = owner_.store->GetOrCreate(store::ChangingForTests::Make(), "w", {},
                                        [] { return store::Value(1); });
  RRef fork = Fetch(*made.Wait());
  EXPECT_EQ(fork.name(), "w");
  fork = RRef();
  network_.RunAll();
  EXPECT_TRUE(owner_.store->Lookup("w").ok());
}

TEST_F(RRefContextTest, RREF_51_AReferenceToWhatWasFreedSinceItWasFoundIsRefused) {
  const store::EntryPtr found =
      *owner_.store
           ->GetOrCreate(store::ChangingForTests::Make(), "w", {}, [] { return store::Value(1); })
           .Wait();
  owner_.rrefs->LocalRRef(
      *owner_.store->Drop(store::ChangingForTests::Make(), "w"));  // frees the value
  EXPECT_EQ(owner_.rrefs->ForkFor(found, user_.agent.self(), user_.agent.epoch()).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(owner_.rrefs->stats().forks, 0u);
}

TEST_F(RRefContextTest, RREF_03_RREF_13_AnOwnValueComesHomeAsLocalRRef) {
  store::EntryPtr entry = owner_.Put();
  ForkData data = *owner_.rrefs->ForkFor(entry, owner_.agent.self(), 7);
  EXPECT_EQ(owner_.rrefs->stats().forks, 1u) << "kept on its way";
  RRef home = *owner_.rrefs->AdoptFork(data, 7);
  EXPECT_TRUE(home.is_owner());
  EXPECT_EQ(owner_.rrefs->stats().forks, 0u);
  EXPECT_TRUE(owner_.store->Get(entry->id).ok());
  home = RRef();
  EXPECT_EQ(owner_.rrefs->AdoptFork(data, 7).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(RRefContextTest, AnUncountedReferenceReadsItsValueButKeepsItNot) {
  store::EntryPtr entry = owner_.Put();
  RRef fork = Fetch(entry);
  const GlobalId value = entry->id;
  entry = nullptr;
  const ForkRun run = {"owner0", 1, "trainer0", {{value, {}, ""}, {value, {}, ""}}};
  std::vector<RRef> read = *owner_.rrefs->BorrowUncounted(run);
  ASSERT_EQ(read.size(), 2u);
  EXPECT_TRUE(read[0].is_owner());
  read.pop_back();
  EXPECT_TRUE(owner_.store->Get(value).ok());
  fork = RRef();
  network_.RunAll();
  EXPECT_FALSE(owner_.store->Get(value).ok()) << "its last holder has gone";
  EXPECT_EQ((*read[0].local_entry())->id, value);
  EXPECT_EQ(owner_.rrefs->BorrowUncounted(run).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(RRefContextTest, RREF_13_UncountedOrNotTheForkOfACallToItselfEndsAtHome) {
  store::EntryPtr entry = owner_.Put();
  const ForkData data = *owner_.rrefs->ForkFor(entry, owner_.agent.self(), 7);
  std::vector<RRef> home =
      *owner_.rrefs->BorrowUncounted({data.owner, 1, data.parent, {{data.value, data.fork, ""}}});
  EXPECT_EQ(owner_.rrefs->stats().forks, 0u);
  EXPECT_TRUE(owner_.store->Get(entry->id).ok());
  home.clear();
  EXPECT_FALSE(owner_.store->Get(entry->id).ok());
}

TEST_F(RRefContextTest, RREF_34_AForkThatItsHolderNeverHearsOfGoesAgain) {
  store::EntryPtr entry = owner_.Put();
  ForkData data = *owner_.rrefs->ForkFor(entry, user_.agent.self(), user_.agent.epoch());
  RRef other = Fetch(entry);
  owner_.rrefs->DropFork(data, user_.agent.self(), user_.agent.epoch());
  owner_.rrefs->DropFork(data, user_.agent.self(), user_.agent.epoch());
  EXPECT_EQ(owner_.rrefs->stats().forks, 1u);
  EXPECT_TRUE(owner_.store->Get(entry->id).ok()) << "another fork keeps it";
  other = RRef();
  network_.RunAll();
  EXPECT_FALSE(owner_.store->Get(entry->id).ok());
}

TEST_F(RRefContextTest, RREF_35_ReleaseAllEndsEveryForkAndHandlesSaySo) {
  store::EntryPtr entry = owner_.Put();
  RRef fork = Fetch(entry), pending = user_.rrefs->NewUserRRef("owner0", 0);
  user_.rrefs->ReleaseAll();
  network_.RunAll();
  EXPECT_EQ(owner_.rrefs->stats().forks, 0u);
  EXPECT_EQ(user_.rrefs->CheckUsable(fork).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(user_.rrefs->CheckUsable(pending).code(), absl::StatusCode::kFailedPrecondition);
}

// The user holds a value of the owner and passes it to a third worker.
class LendingTest : public RRefContextTest {
 protected:
  // Passes the reference as the answer of a function on the user would.
  absl::StatusOr<RRef> PassInAnswer(const RRef& rref) {
    return third_.rrefs->AdoptFork(
        *user_.rrefs->Lend(rref, third_.agent.self(), third_.agent.epoch()), third_.agent.epoch());
  }
  // Passes the reference as an argument of a call would.
  absl::StatusOr<RRef> PassInCall(const RRef& rref) {
    const Incarnation owner = rref.body()->owner_incarnation();
    PSD_ASSIGN_OR_RETURN(
        auto borrowed,
        third_.rrefs->Borrow({rref.owner(), owner, "trainer0", {{rref.value_id(), {}, ""}}}));
    return borrowed[0];
  }

  store::EntryPtr entry_ = owner_.Put();
  RRef held_ = Fetch(entry_);
  TestWorker third_{network_, "trainer1", 3};
};

TEST_F(LendingTest, RREF_09_RREF_19_ALentReferenceIsKeptUntilTheOwnerCountsTheNewOne) {
  RRef passed = *PassInAnswer(held_);
  held_ = RRef();
  EXPECT_EQ(user_.rrefs->stats().loans, 1u);
  EXPECT_FALSE(passed.confirmed().IsReady());
  EXPECT_EQ(owner_.rrefs->stats().forks, 1u) << "the lender's";
  network_.RunUntil(passed.confirmed());
  EXPECT_TRUE(passed.confirmed().Wait().ok());
  EXPECT_EQ(owner_.rrefs->stats().forks, 2u);
  network_.RunAll();
  EXPECT_EQ(user_.rrefs->stats().loans, 0u);
  EXPECT_EQ(owner_.rrefs->stats().forks, 1u);
  EXPECT_TRUE(owner_.store->Get(entry_->id).ok());
  passed = RRef();
  network_.RunAll();
  EXPECT_FALSE(owner_.store->Get(entry_->id).ok());
}

TEST_F(LendingTest, RREF_19_WhateverIsLostNothingIsFreedEarlyAndNothingIsLeft) {
  for (const std::string lost : {"rref.fork", "rref.counted"}) {
    network_.SetFilter([&](const std::string&, const std::string&, const rpc::Request& request) {
      return request.method == lost ? absl::UnavailableError("lost") : absl::OkStatus();
    });
    RRef passed = *PassInAnswer(held_);
    network_.RunAll();
    EXPECT_EQ(passed.confirmed().Wait().ok(), lost != "rref.fork");
    EXPECT_EQ(third_.rrefs->CheckUsable(passed).ok(), lost != "rref.fork");
    EXPECT_TRUE(owner_.store->Get(entry_->id).ok());
  }
  // The loan to the third worker ends with that worker's session at the latest.
  EXPECT_EQ(user_.rrefs->stats().loans, 1u);
  network_.EndSessionsOf("trainer1");
  EXPECT_EQ(user_.rrefs->stats().loans, 0u);
  RRef late = *PassInCall(held_);
  EXPECT_EQ(owner_.rrefs->stats().forks, 1u);
  held_ = RRef();
}

TEST_F(LendingTest, RREF_14_RREF_18_TwoForksOfOneReferenceEachCountedAndDeletedOnce) {
  RRef first = *PassInCall(held_), second = *PassInCall(held_);
  network_.RunAll();
  EXPECT_EQ(owner_.rrefs->stats().forks, 3u);
  held_ = RRef();
  network_.RunAll();
  first = RRef();
  network_.RunAll();
  EXPECT_EQ(owner_.rrefs->stats().forks, 1u);
  EXPECT_TRUE(owner_.store->Get(entry_->id).ok());
  second = RRef();
  network_.RunAll();
  EXPECT_FALSE(owner_.store->Get(entry_->id).ok());
}

TEST_F(LendingTest, RREF_13_RREF_15_AReferenceThatComesHomeThroughAnotherAddsNoFork) {
  RRef home = *owner_.rrefs->AdoptFork(
      *user_.rrefs->Lend(held_, owner_.agent.self(), owner_.agent.epoch()), owner_.agent.epoch());
  EXPECT_TRUE(home.is_owner());
  EXPECT_EQ(home.value_id(), held_.value_id());
  network_.RunAll();
  EXPECT_EQ(owner_.rrefs->stats().forks, 1u);
  EXPECT_EQ(user_.rrefs->stats().loans, 0u);
}

// The session ends while the answer that the owner counts the fork waits to be handled. Nobody
// counts the fork any more, whatever is asked in the next session.
TEST_F(LendingTest, AForkThatWasCountedInAnEarlierSessionIsNotConfirmed) {
  RRef passed = *PassInCall(held_);
  ASSERT_TRUE(network_.RunOne()) << "the owner counts the fork";
  ASSERT_EQ(owner_.rrefs->stats().forks, 2u);
  network_.EndSessionsOf("trainer1");
  EXPECT_EQ(owner_.rrefs->stats().forks, 1u);
  network_.RunAll();
  EXPECT_EQ(passed.confirmed().Wait().status().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(passed.body()->made().Wait().status().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(third_.rrefs->CheckUsable(passed).code(), absl::StatusCode::kAborted);
}

TEST_F(LendingTest, AnAnswersReferenceOfAnEarlierSessionHasFailed) {
  const uint64_t epoch = third_.agent.epoch();
  const ForkData data = *owner_.rrefs->ForkFor(entry_, third_.agent.self(), epoch);
  network_.EndSessionsOf("trainer1");
  RRef adopted = *third_.rrefs->AdoptFork(data, epoch);
  EXPECT_EQ(third_.rrefs->CheckUsable(adopted).code(), absl::StatusCode::kAborted);
  EXPECT_FALSE(adopted.confirmed().Wait().ok());
}

// A value that the user asked the owner to make, and that it passes on during the creation.
class CreationTest : public LendingTest {
 protected:
  RRef pending_ = user_.rrefs->NewUserRRef("owner0", 0);
};

TEST_F(CreationTest, RREF_21_AReferenceMayBePassedOnWhenItsCreationHasBegun) {
  Future<Unit> passable = user_.rrefs->Passable(pending_);
  network_.RunAll();
  EXPECT_FALSE(passable.IsReady()) << "the owner does not know it yet";
  ASSERT_TRUE(Begin(pending_).ok());
  network_.RunAll();
  ASSERT_TRUE(passable.IsReady());
  EXPECT_TRUE(passable.Wait().ok());
  RRef passed = *PassInCall(pending_);
  network_.RunAll();
  EXPECT_TRUE(passed.confirmed().IsReady()) << "counted";
  EXPECT_FALSE(passed.made().IsReady());
  EXPECT_FALSE(pending_.confirmed().IsReady()) << "the creator's own waits for the end";
  End(pending_.value_id());
  network_.RunAll();
  EXPECT_TRUE(passed.made().Wait().ok());
}

TEST_F(CreationTest, RREF_21_RREF_18_WhoeverHoldsItLastKeepsWhatIsBeingMade) {
  ASSERT_TRUE(Begin(pending_).ok());
  const GlobalId value = pending_.value_id();
  RRef passed = *PassInCall(pending_);
  network_.RunAll();
  user_.rrefs->CreationFailed(pending_, absl::DeadlineExceededError("too late"), true);
  network_.RunAll();
  End(value);
  network_.RunAll();
  EXPECT_TRUE(passed.made().Wait().ok());
  EXPECT_TRUE(owner_.store->Get(value).ok());
  passed = RRef();
  network_.RunAll();
  EXPECT_FALSE(owner_.store->Get(value).ok());
}

TEST_F(CreationTest, RREF_21_TheOwnerHoldsAndReadsWhatIsBeingMadeWhenItIsThere) {
  ASSERT_TRUE(Begin(pending_).ok());
  const GlobalId value = pending_.value_id();
  const ForkRun run = {"owner0", 1, "trainer0", {{value, {}, ""}}};
  std::vector<RRef> held = *owner_.rrefs->Borrow(run);
  std::vector<RRef> read = *owner_.rrefs->BorrowUncounted(run);
  EXPECT_TRUE(held[0].is_owner());
  EXPECT_TRUE(held[0].confirmed().IsReady());
  EXPECT_FALSE(held[0].is_made() || held[0].made().IsReady() || read[0].is_made());
  EXPECT_EQ(held[0].local_entry().status().code(), absl::StatusCode::kFailedPrecondition);
  // The creator gives up, and only the handles keep the value.
  user_.rrefs->CreationFailed(pending_, absl::DeadlineExceededError("too late"), true);
  network_.RunAll();
  const Future<Unit> made = held[0].made();
  End(value);
  EXPECT_TRUE(made.Wait().ok());
  EXPECT_EQ((*held[0].local_entry())->id, value);
  EXPECT_EQ((*read[0].local_entry())->id, value);
  read.clear();
  EXPECT_TRUE(owner_.store->Get(value).ok());
  held.clear();
  EXPECT_FALSE(owner_.store->Get(value).ok());
}

TEST_F(CreationTest, RREF_26_AHandleOfTheOwnerIsToldThatTheCreationFailed) {
  ASSERT_TRUE(Begin(pending_).ok());
  const ForkRun run = {"owner0", 1, "trainer0", {{pending_.value_id(), {}, ""}}};
  const std::vector<RRef> held = *owner_.rrefs->Borrow(run);
  owner_.rrefs->EndCreation(pending_.value_id(), absl::ResourceExhaustedError("no memory"));
  EXPECT_EQ(held[0].made().Wait().status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(held[0].local_entry().status().code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(CreationTest, RREF_28_WhatNobodyHoldsWhenItIsMadeIsFreedAtOnce) {
  ASSERT_TRUE(Begin(pending_).ok());
  user_.rrefs->CreationFailed(pending_, absl::DeadlineExceededError("too late"), true);
  network_.RunAll();
  End(pending_.value_id());
  EXPECT_FALSE(owner_.store->Get(pending_.value_id()).ok());
  EXPECT_EQ(Begin(pending_).code(), absl::StatusCode::kAborted) << "it was released";
}

TEST_F(CreationTest, RREF_21_RREF_26_ACreationThatFailsIsToldToWhoeverWaitsForIt) {
  Future<Unit> passable = user_.rrefs->Passable(pending_);
  user_.rrefs->CreationFailed(pending_, absl::UnavailableError("nobody listens"), false);
  EXPECT_EQ(passable.Wait().status().code(), absl::StatusCode::kUnavailable);

  RRef other = user_.rrefs->NewUserRRef("owner0", 0);
  ASSERT_TRUE(Begin(other).ok());
  EXPECT_EQ(Begin(other).code(), absl::StatusCode::kAlreadyExists);
  RRef passed = *PassInCall(other);
  network_.RunAll();
  owner_.rrefs->EndCreation(other.value_id(), absl::ResourceExhaustedError("no memory"));
  network_.RunAll();
  EXPECT_EQ(passed.made().Wait().status().code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(LendingTest, RREF_51_AValueThatIsGoneIsAnErrorAtOnce) {
  ASSERT_TRUE(owner_.store->Erase(entry_->id));
  RRef passed = *PassInCall(held_);
  network_.RunAll();
  EXPECT_EQ(passed.confirmed().Wait().status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(third_.rrefs->CheckUsable(passed).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(owner_.rrefs->stats().forks, 1u);
}

TEST_F(LendingTest, RREF_38_HeldTellsWhatHasAHandle) {
  EXPECT_EQ(user_.rrefs->Held(10), std::vector<std::string>{held_.ToString()});
  EXPECT_TRUE(user_.rrefs->Held(0).empty());
  held_ = RRef();
  EXPECT_TRUE(user_.rrefs->Held(10).empty());
}

// A release waits for its owner, so forks of which no owner can have heard must not queue any.
TEST_F(LendingTest, AForkIsReleasedAfterAFailureOnlyIfItMayExist) {
  for (const bool fate_unknown : {false, true}) {
    network_.SetFilter([&](const std::string&, const std::string&, const rpc::Request& request) {
      if (request.method != "rref.fork") return absl::OkStatus();
      return WithDetail(absl::UnavailableError("lost"),
                        ErrorDetail{"owner0", "", "", fate_unknown});
    });
    RRef passed = *PassInAnswer(held_);
    network_.RunAll();
    EXPECT_FALSE(passed.confirmed().Wait().ok());
    EXPECT_EQ(network_.Count("rref.release"), fate_unknown ? 1 : 0);
  }
}

TEST_F(LendingTest, DamagedOrForeignRequestsAreRefused) {
  for (const char* method : {"rref.fork", "rref.counted", "rref.begun", "rref.made"}) {
    rpc::Request request;
    request.method = method;
    request.payload.header = "\x09\x01";
    auto reply = third_.agent.StartCall("owner0", request, {}).reply();
    network_.RunAll();
    EXPECT_EQ(reply.Wait().status().code(), absl::StatusCode::kInvalidArgument) << method;
  }
  for (const char* method : {"rref.fork", "rref.begun"}) {
    rpc::Request foreign;
    foreign.method = method;  // its id is not one of the caller's
    auto reply = third_.agent.StartCall("owner0", foreign, {}).reply();
    network_.RunAll();
    EXPECT_EQ(reply.Wait().status().code(), absl::StatusCode::kInvalidArgument) << method;
  }
}

TEST_F(RRefContextTest, HandlesMayOutliveTheirContext) {
  store::EntryPtr entry = owner_.Put();
  RRef fork = Fetch(entry), local = owner_.rrefs->LocalRRef(entry);
  user_.rrefs.reset();
  owner_.rrefs.reset();
  fork = RRef();
  local = RRef();
  network_.RunAll();
}

TEST_F(RRefContextTest, DamagedDataIsRefused) {
  EXPECT_EQ(user_.rrefs->AdoptFork({}, 1).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(user_.rrefs->CheckUsable(RRef()).code(), absl::StatusCode::kInvalidArgument);
  rpc::Request request;
  request.method = "rref.release";
  request.payload.header = "\x22\x01\x05";
  auto reply = user_.agent.StartCall("owner0", request, {}).reply();
  network_.RunAll();
  EXPECT_EQ(reply.Wait().status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace psd::rref
