// References to values that are still being made.

#include <string>
#include <vector>

#include "client/calls.h"
#include "client/runtime_of.h"
#include "core/services/calls/early_starts.h"
#include "core/services/gradients/gradient_service.h"
#include "core/services/rows/rows_service.h"
#include "core/services/values/value_service.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/references_world.h"

namespace psd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using ReferencesCreationTest = ReferencesWorld;

TEST_F(ReferencesCreationTest, RREF_02_ManyRemotesAreOutstandingAndToHereWaits) {
  std::vector<RRef> made;
  for (int i = 0; i < 20; ++i) made.push_back(Must(trainer_->Remote("owner0", Named("park"), {})));
  Future<Values> fetch = trainer_->ToHereAsync(made);
  for (int i = 0; i < 20; ++i) {
    EXPECT_FALSE(fetch.IsReady());
    parking_.Take().Set(Values{7});
  }
  for (const Value& value : Must(fetch.Wait())) EXPECT_EQ(IntOf(value), 7);
}

TEST_F(ReferencesCreationTest, RREF_23_UsesThatOvertakeTheCreationWaitForIt) {
  RRef slow = Must(trainer_->Remote("owner0", Named("park"), {}));
  Future<Values> fetched = trainer_->ToHereAsync({slow});
  Future<Values> shared = trainer_->RpcAsync("owner1", Named("fetch"), {slow});
  Future<Values> passed = trainer_->RpcAsync("owner0", Named("fetch"), {slow});
  Promise<Values> creation = parking_.Take();
  EXPECT_FALSE(fetched.IsReady() || shared.IsReady() || passed.IsReady());
  creation.Set(Values{6});
  for (const Future<Values>& use : {fetched, shared, passed}) {
    EXPECT_EQ(IntOf(Must(use.Wait())[0]), 6);
  }
}

TEST_F(ReferencesCreationTest, RREF_21_AFunctionStartsWhenItsReferencesAreCountedNotMade) {
  {
    for (const std::string owner : {"owner0", "trainer0"}) {
      const std::string other = owner == "owner0" ? "trainer0" : "owner0";
      RRef rref = Must(trainer_->Remote(owner, Named("park"), {}));
      Values about = Must(trainer_->RpcSync("owner1", Named("about"), {rref}));
      EXPECT_EQ(*about[0].As<std::string>(), owner);
      EXPECT_TRUE(*about[2].As<bool>()) << "confirmed before the function began";
      EXPECT_FALSE(rref.confirmed().IsReady()) << "the creator's own is, when it is made";
      // A reference is passed on to a function that waits for the value.
      Future<Values> further = trainer_->RpcAsync("owner1", Named("call"), {other, "fetch", rref});
      Must(trainer_->RpcSync("owner1", Named("keep"), {rref}));
      EXPECT_FALSE(further.IsReady());
      parking_.Take().Set(Values{8});
      EXPECT_EQ(IntOf(Must(further.Wait())[0]), 8);
    }
  }
  EmptyDrawer();
  WaitUntilNothingIsLeft();
}

TEST_F(ReferencesCreationTest, RREF_21_AFunctionOnTheOwnerStartsToo) {
  for (const std::string owner : {"owner0", "trainer0"}) {
    RRef slow = Must(trainer_->Remote(owner, Named("park"), {}));
    Values about = Must(trainer_->RpcSync(owner, Named("about"), {slow}));
    EXPECT_TRUE(*about[1].As<bool>()) << "it is the owner's own there";
    Must(trainer_->RpcSync(owner, Named("keep"), {slow}));
    // A function that needs the value waits for it, also on the thread of a program.
    Future<Values> fetched = trainer_->RpcAsync(owner, Named("fetch"), {slow});
    Future<Values> doubled = trainer_->RpcAsync(owner, Function::Operator("add", 2), {slow, slow});
    EXPECT_FALSE(fetched.IsReady() || doubled.IsReady() || slow.confirmed().IsReady());
    parking_.Take().Set(Values{Tensor::Scalar(4.0f)});
    EXPECT_THAT(Elements(Must(fetched.Wait())[0].As<Variable>()->tensor()), ElementsAre(4));
    EXPECT_THAT(Elements(Must(doubled.Wait())[0].As<Variable>()->tensor()), ElementsAre(8));
  }
  EmptyDrawer();
  WaitUntilNothingIsLeft();
}

TEST_F(ReferencesCreationTest, RREF_21_FunctionsThatHoldNoThreadKeepNoOtherFromStarting) {
  constexpr int kParked = 2 * services::EarlyStarts::kMost;
  {
    RRef slow = Must(trainer_->Remote("owner0", Named("park"), {}));
    Promise<Values> creation = parking_.Take();
    std::vector<Future<Values>> parked;
    for (int i = 0; i < kParked; ++i) {
      parked.push_back(trainer_->RpcAsync("owner0", Named("park"), {slow}));
    }
    Values about = Must(trainer_->RpcSync("owner0", Named("about"), {slow}));
    EXPECT_TRUE(*about[1].As<bool>());
    EXPECT_FALSE(slow.confirmed().IsReady());
    for (int i = 0; i < kParked; ++i) parking_.Take().Set(Values{7});
    for (const Future<Values>& each : parked) EXPECT_TRUE(each.Wait().ok());
    creation.Set(Values{Tensor::Scalar(4.0f)});
  }
  WaitUntilReleased();
}

TEST_F(ReferencesCreationTest, RREF_21_FunctionsThatWaitForAnArgumentLeaveThreadsToOthers) {
  // More than the threads of an owner, including those for waiting functions.
  constexpr int kWaiting = 400;
  {
    RRef slow = Must(trainer_->Remote("owner0", Named("park"), {}));
    std::vector<Future<Values>> waiting;
    for (int i = 0; i < kWaiting; ++i) {
      waiting.push_back(trainer_->RpcAsync("owner0", Named("fetch"), {slow}));
    }
    EXPECT_EQ(IntOf(Must(trainer_->RpcSync("owner0", Named("add"), {1, 2}))[0]), 3);
    parking_.Take().Set(Values{Tensor::Scalar(4.0f)});
    for (const Future<Values>& each : waiting) EXPECT_TRUE(each.Wait().ok());
  }
  WaitUntilNothingIsLeft();
}

TEST_F(ReferencesCreationTest, RREF_23_RowsOfATableThatIsBeingMadeAreWaitedFor) {
  for (const std::string owner : {"trainer0", "owner0"}) {
    RRef table = Must(trainer_->Remote(owner, Named("park"), {}));
    const Future<Values> looking = RuntimeOf(*trainer_).rows().LookUp(
        owner, {{table, Tensor::Of<int64_t>({1}, {1})}}, nullptr, {});
    EXPECT_FALSE(looking.IsReady());
    parking_.Take().Set(Values{Variable(Tensor::Of<float>({2, 1}, {5, 6}), true)});
    EXPECT_THAT(Elements(Must(looking.Wait())[0].As<Variable>()->tensor()), ElementsAre(6))
        << owner;
  }
}

TEST_F(ReferencesCreationTest, RREF_23_AssignmentsAndGradientsOfWhatIsBeingMadeWaitForIt) {
  const Tensor ones = Tensor::Of<float>({2}, {1, 1});
  const auto made = [] { return Values{Variable(Tensor::Of<float>({2}, {5, 6}), true)}; };
  for (const std::string owner : {"trainer0", "owner0"}) {
    const auto context = RuntimeOf(*trainer_).autograd().NewContext();
    RRef slow = Must(trainer_->Remote(owner, Named("park"), {}));
    const auto assigned = RuntimeOf(*trainer_).values().Assign(slow, ones, {});
    const auto pushed = RuntimeOf(*trainer_).gradients().Push(context, slow, 0, ones, {});
    EXPECT_FALSE(assigned.IsReady() || pushed.IsReady()) << owner;
    parking_.Take().Set(made());
    EXPECT_TRUE(assigned.Wait().ok()) << assigned.Wait().status();
    EXPECT_TRUE(pushed.Wait().ok()) << pushed.Wait().status();
    // No gradient has come for the next value. This is known once it is made.
    RRef next = Must(trainer_->Remote(owner, Named("park"), {}));
    const auto asked = RuntimeOf(*trainer_).gradients().Fetch(context->id(), next, {});
    EXPECT_FALSE(asked.IsReady()) << owner;
    parking_.Take().Set(made());
    EXPECT_THAT(asked.Wait().status().message(), HasSubstr("no loss depended on it"));
    RuntimeOf(*trainer_).autograd().Release(context->id());
  }
}

TEST_F(ReferencesCreationTest, RREF_11_RREF_21_AnAnswerDoesNotWaitForWhatIsBeingMadeElsewhere) {
  RRef begun = RRef::FromValue(Must(trainer_->RpcSync("owner0", Named("begin"), {"owner1"}))[0]);
  EXPECT_EQ(begun.owner(), "owner1");
  Future<Values> fetched = trainer_->ToHereAsync({begun});
  EXPECT_TRUE(begun.confirmed().Wait().ok()) << "counted";
  EXPECT_FALSE(begun.made().IsReady() || fetched.IsReady());
  parking_.Take().Set(Values{9});
  EXPECT_EQ(IntOf(Must(fetched.Wait())[0]), 9);
  begun = RRef();
  WaitUntilNothingIsLeft();
}

TEST_F(ReferencesCreationTest, RREF_11_RREF_23_AnAnswerWaitsWhereTheValueIsNeeded) {
  // The references are in a value's place, at its owner, and to a value of the owner itself.
  RRef kept = Must(trainer_->Remote("owner0", Named("begin"), {"owner1"}));
  Future<Values> home = trainer_->RpcAsync("owner1", Named("call"), {"owner0", "begin", "owner1"});
  Future<Values> own = trainer_->RpcAsync("owner0", Named("begin"), {"owner0"});
  std::vector<Promise<Values>> creations;
  for (int i = 0; i < 3; ++i) creations.push_back(parking_.Take());
  EXPECT_FALSE(kept.confirmed().IsReady() || home.IsReady() || own.IsReady());
  for (const Promise<Values>& creation : creations) creation.Set(Values{3});
  EXPECT_TRUE(kept.confirmed().Wait().ok());
  for (const Future<Values>& answer : {home, own}) {
    EXPECT_EQ(Fetched(RRef::FromValue(Must(answer.Wait())[0])), 3);
  }
}

}  // namespace
}  // namespace psd
