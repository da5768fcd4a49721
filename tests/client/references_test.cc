// References between three workers: owners, users and third workers pass them on and release them.

#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "client/calls.h"
#include "client/runtime_of.h"
#include "core/services/values/value_service.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/references_world.h"

namespace psd {
namespace {

using ::testing::HasSubstr;

using ReferencesTest = ReferencesWorld;

TEST_F(ReferencesTest, RREF_04_IdsOfReferencesAndForksAreDistinctAndPrinted) {
  RRef first = Make("owner0", 1), second = Make("owner0", 2);
  EXPECT_NE(first.value_id(), second.value_id());
  EXPECT_NE(first.body()->fork_id(), second.body()->fork_id());
  EXPECT_NE(first.value_id(), first.body()->fork_id());
  EXPECT_EQ(first.value_id().incarnation, RuntimeOf(*trainer_).incarnation()) << "unique over time";
  EXPECT_THAT(first.ToString(), HasSubstr(first.value_id().ToString()));
  EXPECT_THAT(first.ToString(), HasSubstr(first.body()->fork_id().ToString()));
  EXPECT_THAT(first.ToString(), HasSubstr("on owner0"));
}

TEST_F(ReferencesTest, RREF_05_RREF_06_OwnerIsKnownEverywhereAndOnlyItHasALocalValue) {
  RRef there = Make("owner0", 1);
  EXPECT_EQ(there.owner(), "owner0");
  EXPECT_FALSE(there.is_owner());
  const absl::Status refused = trainer_->LocalValue(there).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  for (const std::string& part : {there.value_id().ToString(), there.body()->fork_id().ToString(),
                                  std::string("trainer0"), std::string("owner0")}) {
    EXPECT_THAT(std::string(refused.message()), HasSubstr(part));
  }
  Values on_owner = Must(trainer_->RpcSync("owner0", Named("about"), {there}));
  EXPECT_EQ(*on_owner[0].As<std::string>(), "owner0");
  EXPECT_TRUE(*on_owner[1].As<bool>());
  Values on_third = Must(trainer_->RpcSync("owner1", Named("about"), {there}));
  EXPECT_EQ(*on_third[0].As<std::string>(), "owner0");
  EXPECT_FALSE(*on_third[1].As<bool>());
}

TEST_F(ReferencesTest, RREF_07_AFetchOnTheOwnerIsLocalAndHasNoTimeout) {
  RRef mine = Must(trainer_->Remote("trainer0", Named("echo"), {7}));
  ASSERT_TRUE(mine.confirmed().Wait().ok());
  CallOptions at_once;
  at_once.timeout = absl::Nanoseconds(1);
  Future<Values> fetched = trainer_->ToHereAsync({mine}, at_once);
  ASSERT_TRUE(fetched.IsReady());
  EXPECT_EQ(IntOf(Must(fetched.Wait())[0]), 7);
}

TEST_F(ReferencesTest, RREF_08_RREF_13_RREF_15_ReferencesToTheirOwner) {
  RRef a = Make("owner0", 3), b = Make("owner0", 4);
  for (const Value& sum : InAllModes("owner0", "fetch_both", {a, b})) EXPECT_EQ(IntOf(sum), 7);
  Values about = Must(trainer_->RpcSync("owner0", Named("about"), {a}));
  EXPECT_EQ(*about[4].As<std::string>(), a.value_id().ToString());
  // The result of a mode is freed when its release has come.
  while (owner0_.runtime().rrefs().stats().owners > 2) std::this_thread::yield();
  EXPECT_EQ(owner0_.runtime().rrefs().stats().forks, 2u);
  a = b = RRef();
  WaitUntilNothingIsLeft();
}

TEST_F(ReferencesTest, RREF_09_RREF_20_AThirdWorkerFetchesFromTheOwner) {
  {
    RRef a = Make("owner0", 3), b = Make("owner0", 4);
    for (const Value& sum : InAllModes("owner1", "fetch_both", {a, b})) EXPECT_EQ(IntOf(sum), 7);
    Values about = Must(trainer_->RpcSync("owner1", Named("about"), {a}));
    EXPECT_TRUE(*about[2].As<bool>()) << "confirmed before the function began";
  }
  WaitUntilNothingIsLeft();
}

TEST_F(ReferencesTest, RREF_10_AnOwnerPassesItsOwnToUsersInAllModes) {
  {
    RRef mine = Must(trainer_->Remote("trainer0", Named("echo"), {9}));
    for (const Value& value : InAllModes("owner0", "fetch", {mine})) EXPECT_EQ(IntOf(value), 9);
    for (const Value& value : InAllModes("trainer0", "fetch", {mine})) EXPECT_EQ(IntOf(value), 9);
  }
  WaitUntilNothingIsLeft();
}

TEST_F(ReferencesTest, RREF_11_FunctionsReturnReferences) {
  {
    // The references are: the function's own, the caller's, one of a third worker, a list of its
    // own, and one to a list of references.
    RRef own = RRef::FromValue(Must(trainer_->RpcSync("owner0", Named("make"), {1}))[0]);
    EXPECT_EQ(Fetched(own), 1);
    RRef home =
        RRef::FromValue(Must(trainer_->RpcSync("owner0", Named("remote"), {"trainer0", 2}))[0]);
    EXPECT_TRUE(home.is_owner());
    EXPECT_EQ(Fetched(home), 2);
    RRef third =
        RRef::FromValue(Must(trainer_->RpcSync("owner0", Named("remote"), {"owner1", 3}))[0]);
    EXPECT_EQ(third.owner(), "owner1");
    EXPECT_EQ(Fetched(third), 3);
    RRef itself =
        RRef::FromValue(Must(trainer_->RpcSync("owner0", Named("remote"), {"owner0", 4}))[0]);
    EXPECT_EQ(itself.owner(), "owner0");
    EXPECT_EQ(Fetched(itself), 4);
    Values list = Must(trainer_->RpcSync("owner0", Named("make_list"), {}));
    for (int i = 0; i < 3; ++i) EXPECT_EQ(Fetched(RRef::FromValue(list[0].AsList()->at(i))), i);
    RRef to_list = Must(trainer_->Remote("owner1", Named("make_list"), {}));
    Values fetched = Must(trainer_->ToHere({to_list}));
    for (int i = 0; i < 3; ++i) EXPECT_EQ(Fetched(RRef::FromValue(fetched[0].AsList()->at(i))), i);
  }
  WaitUntilNothingIsLeft();
}

TEST_F(ReferencesTest, RREF_12_AChainOfForwardsLeadsToTheFirstValue) {
  {
    RRef first = Make("owner0", 42);
    Values value = Must(trainer_->RpcSync("owner0", Named("forward"), {first, 8}));
    EXPECT_EQ(IntOf(value[0]), 42);
  }
  WaitUntilNothingIsLeft();
}

TEST_F(ReferencesTest, RREF_14_RREF_18_RREF_39_ForksOfOneReferenceGoInAnyOrder) {
  RRef root = Make("owner0", 5);
  Must(trainer_->RpcSync("owner1", Named("keep"), {root}));
  Must(trainer_->RpcSync("owner1", Named("keep"), {root}));
  EXPECT_EQ(owner0_.runtime().rrefs().stats().forks, 3u);
  EXPECT_EQ(owner1_.runtime().rrefs().stats().users, 2u);
  root = RRef();  // the root of the tree first
  while (owner0_.runtime().rrefs().stats().forks > 2) std::this_thread::yield();
  RRef leaf;
  {
    MutexLock lock(drawer_->mutex);
    leaf = drawer_->kept[0];
  }
  EXPECT_EQ(IntOf(Must(owner1_.runtime().values().Fetch({leaf}, nullptr, {}).Wait())[0]), 5);
  leaf = RRef();
  EmptyDrawer();
  WaitUntilNothingIsLeft();
}

TEST_F(ReferencesTest, RREF_49_SharingWhileTheLastHandleGoesIsSafe) {
  for (int i = 0; i < 50; ++i) {
    RRef shared = Make("owner0", i);
    Future<Values> call = trainer_->RpcAsync("owner1", Named("fetch"), {shared});
    std::thread drops([&] { shared = RRef(); });
    drops.join();
    EXPECT_EQ(IntOf(Must(call.Wait())[0]), i);
  }
  WaitUntilNothingIsLeft();
}

}  // namespace
}  // namespace psd
