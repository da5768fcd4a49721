// References between three workers: an owner, users and third parties, and references to objects.

#include <unistd.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/calls.h"
#include "core/worker/early_starts.h"
#include "core/worker/gradient_service.h"
#include "core/worker/rows_service.h"
#include "core/worker/value_service.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/function_world.h"
#include "tests/core/carrier/tcp_route.h"

namespace psd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using worker::FunctionCall;
using Result = absl::StatusOr<Values>;

// An object with methods.
class Log : public store::Object {
 public:
  std::string TypeName() const override { return "log"; }
  int64_t Append(int64_t number) {
    MutexLock lock(mutex_);
    numbers_.push_back(number);
    return static_cast<int64_t>(numbers_.size());
  }
  Value All() {
    MutexLock lock(mutex_);
    return Value::OfList({numbers_.begin(), numbers_.end()});
  }

 private:
  Mutex mutex_;  // leaf
  std::vector<int64_t> numbers_ PSD_GUARDED_BY(mutex_);
};

// References that registered functions keep.
struct Drawer {
  Mutex mutex;  // leaf
  std::vector<RRef> kept PSD_GUARDED_BY(mutex);
};

Result FetchHere(const FunctionCall& call, const RRef& rref) {
  rpc::CallOptions options;
  return call.runtime.values().Fetch({rref}, nullptr, options).Wait();
}

class ReferencesTest : public ::testing::Test {
 protected:
  ReferencesTest() {
    owner0_.runtime().agent().AddPeer("owner1", owner1_.address().address);
    owner1_.runtime().agent().AddPeer("owner0", owner0_.address().address);
  }

  static Function Named(const std::string& name) { return Function::Registered(name); }

  FunctionRegistry Functions() {
    FunctionRegistry functions = offer_.Functions();
    auto add = [&](const std::string& name, worker::Function function) {
      EXPECT_TRUE(functions.Register(name, std::move(function)).ok());
    };
    add("fetch", [](const FunctionCall& call, Values arguments) -> Result {
      return FetchHere(call, RRef::FromValue(arguments[0]));
    });
    add("fetch_both", [](const FunctionCall& call, Values arguments) -> Result {
      PSD_ASSIGN_OR_RETURN(Values a, FetchHere(call, RRef::FromValue(arguments[0])));
      PSD_ASSIGN_OR_RETURN(Values b, FetchHere(call, RRef::FromValue(arguments[1])));
      return Values{IntOf(a[0]) + IntOf(b[0])};
    });
    add("about", [](const FunctionCall&, Values arguments) -> Result {
      const RRef rref = RRef::FromValue(arguments[0]);
      return Values{rref.owner(), rref.is_owner(), rref.confirmed().IsReady(), rref.ToString(),
                    rref.value_id().ToString()};
    });
    add("make", [](const FunctionCall& call, Values arguments) -> Result {
      PSD_ASSIGN_OR_RETURN(auto entry, call.runtime.store().Put(arguments[0], false));
      return Values{call.runtime.rrefs().LocalRRef(entry)};
    });
    add("make_list", [](const FunctionCall& call, Values) -> Result {
      Value::List own;
      for (int i = 0; i < 3; ++i) {
        PSD_ASSIGN_OR_RETURN(auto entry, call.runtime.store().Put(Value(i), false));
        own.push_back(call.runtime.rrefs().LocalRRef(entry));
      }
      return Values{Value::OfList(std::move(own))};
    });
    add("remote", [](const FunctionCall& call, Values arguments) -> Result {
      worker::CallTarget target{nullptr, {}, "echo"};
      PSD_ASSIGN_OR_RETURN(RRef made,
                           call.runtime.calls().Remote(*arguments[0].As<std::string>(), target,
                                                       {arguments[1]}, nullptr, {}));
      return Values{made};
    });
    add("begin", [](const FunctionCall& call, const Values& arguments) -> Result {
      worker::CallTarget target{nullptr, {}, "park"};
      PSD_ASSIGN_OR_RETURN(RRef begun, call.runtime.calls().Remote(*arguments[0].As<std::string>(),
                                                                   target, {}, nullptr, {}));
      return Values{begun};
    });
    add("keep", [drawer = drawer_](const FunctionCall&, Values arguments) -> Result {
      MutexLock lock(drawer->mutex);
      drawer->kept.push_back(RRef::FromValue(arguments[0]));
      return Values{};
    });
    // Wraps the reference in a new reference on the next worker, which does the same, and so on.
    add("forward", [](const FunctionCall& call, Values arguments) -> Result {
      const int64_t left = IntOf(arguments[1]);
      if (left == 0) return FetchHere(call, RRef::FromValue(arguments[0]));
      const std::string next = call.runtime.name() == "owner0"   ? "owner1"
                               : call.runtime.name() == "owner1" ? "trainer0"
                                                                 : "owner0";
      worker::CallTarget target{nullptr, {}, "unwrap"};
      PSD_ASSIGN_OR_RETURN(RRef wrapped,
                           call.runtime.calls().Remote(next, target, {arguments[0]}, nullptr, {}));
      return CallOn(call.runtime, next, "forward", {wrapped, left - 1}).Wait();
    });
    add("unwrap", [](const FunctionCall& call, Values arguments) -> Result {
      return FetchHere(call, RRef::FromValue(arguments[0]));
    });
    add("new_log", [](const FunctionCall&, Values) -> Result {
      return Values{Value(std::shared_ptr<store::Object>(std::make_shared<Log>()))};
    });
    EXPECT_TRUE(functions
                    .RegisterMethod<Log>("append",
                                         [](Log& log, const FunctionCall&, Values arguments) {
                                           return Result(Values{log.Append(IntOf(arguments[0]))});
                                         })
                    .ok());
    EXPECT_TRUE(
        functions
            .RegisterMethod<Log>("all", [](Log& log, const FunctionCall&,
                                           const Values&) { return Result(Values{log.All()}); })
            .ok());
    EXPECT_TRUE(functions
                    .RegisterAsyncMethod<Log>(
                        "append_later",
                        [parking = offer_.parking](const std::shared_ptr<Log>& log,
                                                   const FunctionCall&, Values arguments) {
                          return parking->Park().Then(
                              [log, arguments](const absl::StatusOr<Values>& go) -> Result {
                                if (!go.ok()) return go.status();
                                return Values{log->Append(IntOf(arguments[0]))};
                              });
                        })
                    .ok());
    return functions;
  }
  worker::RuntimeOptions Options() {
    worker::RuntimeOptions options;
    options.functions = Functions();
    return options;
  }
  std::unique_ptr<Worker> Start(const std::string& name) {
    WorkerOptions options;
    options.name = name;
    options.owners = {owner0_.address(), owner1_.address()};
    options.functions = Functions();
    return Must(Worker::Start(std::move(options)));
  }
  RRef Make(const std::string& owner, Value value) {
    RRef made = Must(trainer_->Remote(owner, Named("echo"), {std::move(value)}));
    EXPECT_TRUE(made.confirmed().Wait().ok());
    return made;
  }
  int64_t Fetched(const RRef& rref) { return IntOf(Must(trainer_->ToHere({rref}))[0]); }
  // Calls the function in every mode: synchronously, by a future, and by a reference to the result.
  std::vector<Value> InAllModes(const std::string& callee, const std::string& function,
                                const Values& arguments) {
    Future<Values> call = trainer_->RpcAsync(callee, Named(function), arguments);
    RRef remote = Must(trainer_->Remote(callee, Named(function), arguments));
    return {Must(trainer_->RpcSync(callee, Named(function), arguments))[0], Must(call.Wait())[0],
            Must(trainer_->ToHere({remote}))[0]};
  }
  void EmptyDrawer() {
    std::vector<RRef> kept;
    MutexLock lock(drawer_->mutex);
    kept.swap(drawer_->kept);
  }
  void WaitUntilReleased() {
    for (worker::Runtime* runtime :
         {&owner0_.runtime(), &owner1_.runtime(), &trainer_->runtime()}) {
      for (;;) {
        const rref::RRefContext::Stats stats = runtime->rrefs().stats();
        if (stats.owners + stats.forks + stats.users + stats.pending_users + stats.loans == 0) {
          break;
        }
        std::this_thread::yield();
      }
      while (runtime->store().stats().anonymous > 0) std::this_thread::yield();
    }
  }

  Offer offer_;
  Parking& parking_ = *offer_.parking;
  std::shared_ptr<Drawer> drawer_ = std::make_shared<Drawer>();  // shared with the functions
  TestOwner owner0_{"owner0", Options()};
  TestOwner owner1_{"owner1", Options()};
  std::unique_ptr<Worker> trainer_ = Start("trainer0");
};

TEST_F(ReferencesTest, RREF_02_ManyRemotesAreOutstandingAndToHereWaits) {
  std::vector<RRef> made;
  for (int i = 0; i < 20; ++i) made.push_back(Must(trainer_->Remote("owner0", Named("park"), {})));
  Future<Values> fetch = trainer_->ToHereAsync(made);
  for (int i = 0; i < 20; ++i) {
    EXPECT_FALSE(fetch.IsReady());
    parking_.Take().Set(Values{7});
  }
  for (const Value& value : Must(fetch.Wait())) EXPECT_EQ(IntOf(value), 7);
}

TEST_F(ReferencesTest, RREF_04_IdsOfReferencesAndForksAreDistinctAndPrinted) {
  RRef first = Make("owner0", 1), second = Make("owner0", 2);
  EXPECT_NE(first.value_id(), second.value_id());
  EXPECT_NE(first.body()->fork_id(), second.body()->fork_id());
  EXPECT_NE(first.value_id(), first.body()->fork_id());
  EXPECT_EQ(first.value_id().incarnation, trainer_->runtime().incarnation()) << "unique over time";
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
  // The result of the call by reference is erased when its release has arrived.
  while (owner0_.runtime().rrefs().stats().owners > 2) std::this_thread::yield();
  EXPECT_EQ(owner0_.runtime().rrefs().stats().forks, 2u);
  a = b = RRef();
  WaitUntilReleased();
}

TEST_F(ReferencesTest, RREF_09_RREF_20_AThirdWorkerFetchesFromTheOwner) {
  {
    RRef a = Make("owner0", 3), b = Make("owner0", 4);
    for (const Value& sum : InAllModes("owner1", "fetch_both", {a, b})) EXPECT_EQ(IntOf(sum), 7);
    Values about = Must(trainer_->RpcSync("owner1", Named("about"), {a}));
    EXPECT_TRUE(*about[2].As<bool>()) << "confirmed before the function began";
  }
  WaitUntilReleased();
}

TEST_F(ReferencesTest, RREF_10_AnOwnerPassesItsOwnToUsersInAllModes) {
  {
    RRef mine = Must(trainer_->Remote("trainer0", Named("echo"), {9}));
    for (const Value& value : InAllModes("owner0", "fetch", {mine})) EXPECT_EQ(IntOf(value), 9);
    for (const Value& value : InAllModes("trainer0", "fetch", {mine})) EXPECT_EQ(IntOf(value), 9);
  }
  WaitUntilReleased();
}

TEST_F(ReferencesTest, RREF_11_FunctionsReturnReferences) {
  {
    // The functions return references to a value of their own, of the caller and of a third worker,
    // a list of references, and a reference to such a list.
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
  WaitUntilReleased();
}

TEST_F(ReferencesTest, RREF_12_AChainOfForwardsLeadsToTheFirstValue) {
  {
    RRef first = Make("owner0", 42);
    Values value = Must(trainer_->RpcSync("owner0", Named("forward"), {first, 8}));
    EXPECT_EQ(IntOf(value[0]), 42);
  }
  WaitUntilReleased();
}

TEST_F(ReferencesTest, RREF_14_RREF_18_RREF_39_ForksOfOneReferenceGoInAnyOrder) {
  RRef root = Make("owner0", 5);
  Must(trainer_->RpcSync("owner1", Named("keep"), {root}));
  Must(trainer_->RpcSync("owner1", Named("keep"), {root}));
  EXPECT_EQ(owner0_.runtime().rrefs().stats().forks, 3u);
  EXPECT_EQ(owner1_.runtime().rrefs().stats().users, 2u);
  root = RRef();  // the root of the tree of forks goes first
  while (owner0_.runtime().rrefs().stats().forks > 2) std::this_thread::yield();
  RRef leaf;
  {
    MutexLock lock(drawer_->mutex);
    leaf = drawer_->kept[0];
  }
  EXPECT_EQ(IntOf(Must(owner1_.runtime().values().Fetch({leaf}, nullptr, {}).Wait())[0]), 5);
  leaf = RRef();
  EmptyDrawer();
  WaitUntilReleased();
}

TEST_F(ReferencesTest, RREF_23_UsesThatOvertakeTheCreationWaitForIt) {
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

TEST_F(ReferencesTest, RREF_21_AFunctionStartsWhenItsReferencesAreCountedNotMade) {
  {
    for (const std::string owner : {"owner0", "trainer0"}) {
      const std::string other = owner == "owner0" ? "trainer0" : "owner0";
      RRef rref = Must(trainer_->Remote(owner, Named("park"), {}));
      Values about = Must(trainer_->RpcSync("owner1", Named("about"), {rref}));
      EXPECT_EQ(*about[0].As<std::string>(), owner);
      EXPECT_TRUE(*about[2].As<bool>()) << "confirmed before the function began";
      EXPECT_FALSE(rref.confirmed().IsReady()) << "the creator's own is, when it is made";
      // owner1 passes the reference on to a function that waits for the value.
      Future<Values> further = trainer_->RpcAsync("owner1", Named("call"), {other, "fetch", rref});
      Must(trainer_->RpcSync("owner1", Named("keep"), {rref}));
      EXPECT_FALSE(further.IsReady());
      parking_.Take().Set(Values{8});
      EXPECT_EQ(IntOf(Must(further.Wait())[0]), 8);
    }
  }
  EmptyDrawer();
  WaitUntilReleased();
}

TEST_F(ReferencesTest, RREF_21_AFunctionOnTheOwnerStartsToo) {
  for (const std::string owner : {"owner0", "trainer0"}) {
    RRef slow = Must(trainer_->Remote(owner, Named("park"), {}));
    Values about = Must(trainer_->RpcSync(owner, Named("about"), {slow}));
    EXPECT_TRUE(*about[1].As<bool>()) << "it is the owner's own there";
    Must(trainer_->RpcSync(owner, Named("keep"), {slow}));
    // A function and a program that need the value wait for it.
    Future<Values> fetched = trainer_->RpcAsync(owner, Named("fetch"), {slow});
    Future<Values> doubled = trainer_->RpcAsync(owner, Function::Operator("add", 2), {slow, slow});
    EXPECT_FALSE(fetched.IsReady() || doubled.IsReady() || slow.confirmed().IsReady());
    parking_.Take().Set(Values{Tensor::Scalar(4.0f)});
    EXPECT_THAT(Elements(Must(fetched.Wait())[0].As<Variable>()->tensor()), ElementsAre(4));
    EXPECT_THAT(Elements(Must(doubled.Wait())[0].As<Variable>()->tensor()), ElementsAre(8));
  }
  EmptyDrawer();
  WaitUntilReleased();
}

TEST_F(ReferencesTest, RREF_21_FunctionsThatHoldNoThreadKeepNoOtherFromStarting) {
  constexpr int kParked = 2 * worker::EarlyStarts::kMost;
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

TEST_F(ReferencesTest, RREF_21_FunctionsThatWaitForAnArgumentLeaveThreadsToOthers) {
  constexpr int kWaiting = 400;  // more than an owner's threads and those that replace waiting ones
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
  WaitUntilReleased();
}

TEST_F(ReferencesTest, RREF_21_AProgramThatNobodyWaitsForDoesNotWaitForItsArgument) {
  RRef slow = Must(trainer_->Remote("owner0", Named("park"), {}));
  CallOptions shortly;
  shortly.timeout = absl::Milliseconds(20);
  EXPECT_EQ(
      trainer_->RpcSync("owner0", Function::Operator("neg", 1), {slow}, shortly).status().code(),
      absl::StatusCode::kDeadlineExceeded);
  parking_.Take().Set(Values{Tensor::Scalar(4.0f)});
  EXPECT_TRUE(trainer_->RpcSync("owner0", Function::Operator("neg", 1), {slow}).ok());
}

TEST_F(ReferencesTest, RREF_23_RowsOfATableThatIsBeingMadeAreWaitedFor) {
  for (const std::string owner : {"trainer0", "owner0"}) {
    RRef table = Must(trainer_->Remote(owner, Named("park"), {}));
    const Future<Values> looking = trainer_->runtime().rows().LookUp(
        owner, {{table, Tensor::Of<int64_t>({1}, {1})}}, nullptr, {});
    EXPECT_FALSE(looking.IsReady());
    parking_.Take().Set(Values{Variable(Tensor::Of<float>({2, 1}, {5, 6}), true)});
    EXPECT_THAT(Elements(Must(looking.Wait())[0].As<Variable>()->tensor()), ElementsAre(6))
        << owner;
  }
}

TEST_F(ReferencesTest, RREF_23_AssignmentsAndGradientsOfWhatIsBeingMadeWaitForIt) {
  const Tensor ones = Tensor::Of<float>({2}, {1, 1});
  const auto made = [] { return Values{Variable(Tensor::Of<float>({2}, {5, 6}), true)}; };
  for (const std::string owner : {"trainer0", "owner0"}) {
    const auto context = trainer_->runtime().autograd().NewContext();
    RRef slow = Must(trainer_->Remote(owner, Named("park"), {}));
    const auto assigned = trainer_->runtime().values().Assign(slow, ones, {});
    const auto pushed = trainer_->runtime().gradients().Push(context, slow, 0, ones, {});
    EXPECT_FALSE(assigned.IsReady() || pushed.IsReady()) << owner;
    parking_.Take().Set(made());
    EXPECT_TRUE(assigned.Wait().ok()) << assigned.Wait().status();
    EXPECT_TRUE(pushed.Wait().ok()) << pushed.Wait().status();
    // The next value gets no gradient, which the owner can tell once the value is made.
    RRef next = Must(trainer_->Remote(owner, Named("park"), {}));
    const auto asked = trainer_->runtime().gradients().Fetch(context->id(), next, {});
    EXPECT_FALSE(asked.IsReady()) << owner;
    parking_.Take().Set(made());
    EXPECT_THAT(asked.Wait().status().message(), HasSubstr("no loss depended on it"));
    trainer_->runtime().autograd().Release(context->id());
  }
}

TEST_F(ReferencesTest, RREF_34_AFetchThatFailsReleasesWhatTheOtherOwnersAnswered) {
  {
    RRef failed = Must(trainer_->Remote("owner1", Named("fail"), {}));
    RRef list = Must(trainer_->Remote("owner0", Named("make_list"), {}));
    ASSERT_TRUE(list.confirmed().Wait().ok());
    for (int i = 0; i < 20; ++i) {
      EXPECT_EQ(trainer_->ToHere({list, failed}).status().code(), absl::StatusCode::kOutOfRange);
      EXPECT_EQ(trainer_->ToHere({failed, list}).status().code(), absl::StatusCode::kOutOfRange);
    }
  }
  WaitUntilReleased();
}

TEST_F(ReferencesTest, AReferenceFromANameIsGoodWhoeverDropsTheNameMeanwhile) {
  // One worker creates and reads a name again and again while another drops it. Every reference
  // that the first one gets refers to a value that exists.
  std::atomic<bool> done{false};
  auto other = Start("trainer1");
  std::thread drops([&] {
    while (!done) other->Drop("owner0", "w").IgnoreError();
  });
  for (int i = 0; i < 300; ++i) {
    RRef made = Must(trainer_->GetOrCreate("owner0", "w", Full({1}, 3)));
    absl::StatusOr<Values> read = trainer_->ToHere({made});
    if (!read.ok()) {
      ADD_FAILURE() << i << ": " << read.status();
      break;
    }
  }
  done = true;
  drops.join();
}

TEST_F(ReferencesTest, RREF_11_RREF_21_AnAnswerDoesNotWaitForWhatIsBeingMadeElsewhere) {
  RRef begun = RRef::FromValue(Must(trainer_->RpcSync("owner0", Named("begin"), {"owner1"}))[0]);
  EXPECT_EQ(begun.owner(), "owner1");
  Future<Values> fetched = trainer_->ToHereAsync({begun});
  EXPECT_TRUE(begun.confirmed().Wait().ok()) << "counted";
  EXPECT_FALSE(begun.made().IsReady() || fetched.IsReady());
  parking_.Take().Set(Values{9});
  EXPECT_EQ(IntOf(Must(fetched.Wait())[0]), 9);
  begun = RRef();
  WaitUntilReleased();
}

TEST_F(ReferencesTest, RREF_11_RREF_23_AnAnswerWaitsWhereTheValueIsNeeded) {
  // The value is needed where the reference becomes the value of another reference, where the
  // answer reaches the owner of the value, and where the callee itself is the owner.
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

TEST_F(ReferencesTest, RREF_21_RREF_26_ACreationThatNeverBeginsFailsWhoeverWouldPassItOn) {
  // The owner accepts connections but never answers.
  int port = 0;
  const int silent = carrier::ListenOnLoopback(&port);
  trainer_->runtime().agent().AddPeer("silent", absl::StrCat("127.0.0.1:", port));
  CallOptions shortly;
  shortly.timeout = absl::Milliseconds(20);
  RRef never = Must(trainer_->Remote("silent", Named("park"), {}, shortly));
  Future<Values> passed = trainer_->RpcAsync("owner1", Named("about"), {never});
  EXPECT_EQ(passed.Wait().status().code(), absl::StatusCode::kDeadlineExceeded);
  close(silent);
}

TEST_F(ReferencesTest, RREF_24_RREF_25_AnErrorIsKeptSharedAndToldToEveryHolder) {
  {
    RRef failed = Must(trainer_->Remote("owner0", Named("fail"), {}));
    for (int i = 0; i < 2; ++i) {
      const absl::Status told = trainer_->ToHere({failed}).status();
      EXPECT_EQ(told.code(), absl::StatusCode::kOutOfRange);
      EXPECT_THAT(std::string(told.message()), HasSubstr("first line\n"));
    }
    EXPECT_EQ(owner0_.runtime().rrefs().stats().forks, 1u) << "it is counted as any other";
    EXPECT_TRUE(trainer_->RpcSync("owner1", Named("keep"), {failed}).ok());
    EXPECT_TRUE(trainer_->RpcSync("owner0", Named("about"), {failed}).ok());
    EXPECT_EQ(trainer_->RpcSync("owner1", Named("fetch"), {failed}).status().code(),
              absl::StatusCode::kOutOfRange);
  }
  EmptyDrawer();
  WaitUntilReleased();
}

TEST_F(ReferencesTest, RREF_26_RREF_30_ACreationThatTimedOutFailsEveryUse) {
  CallOptions shortly;
  shortly.timeout = absl::Milliseconds(20);
  for (const char* callee : {"owner0", "trainer0"}) {
    RRef late = Must(trainer_->Remote(callee, Named("park"), {}, shortly));
    const absl::Status created = late.confirmed().Wait().status();
    EXPECT_EQ(created.code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_THAT(std::string(created.message()), HasSubstr("creation of"));
    EXPECT_EQ(trainer_->ToHere({late}).status().code(), absl::StatusCode::kDeadlineExceeded);
    for (const char* to : {"owner0", "owner1", "trainer0"}) {
      EXPECT_EQ(trainer_->RpcSync(to, Named("fetch"), {late}).status().code(),
                absl::StatusCode::kDeadlineExceeded)
          << callee << " to " << to;
    }
    parking_.Take().Set(Values{1});
  }
  WaitUntilReleased();
}

TEST_F(ReferencesTest, RREF_29_AFetchThatTimedOutSpoilsNothing) {
  RRef slow = Must(trainer_->Remote("owner0", Named("park"), {}));
  CallOptions shortly;
  shortly.timeout = absl::Milliseconds(20);
  EXPECT_EQ(trainer_->ToHere({slow}, shortly).status().code(), absl::StatusCode::kDeadlineExceeded);
  parking_.Take().Set(Values{6});
  EXPECT_EQ(Fetched(slow), 6);
}

TEST_F(ReferencesTest, RREF_35_RREF_36_RREF_37_AfterShutdownNothingIsLeftAndUsesFail) {
  struct Cycle {
    RRef rref;
    std::shared_ptr<Cycle> self;
  };
  auto cycle = std::make_shared<Cycle>();
  cycle->self = cycle;
  cycle->rref = Make("owner0", 1);
  RRef mine = Must(trainer_->Remote("trainer0", Named("echo"), {2}));
  ASSERT_TRUE(trainer_->Shutdown().ok());
  while (owner0_.runtime().store().stats().anonymous > 0) std::this_thread::yield();
  EXPECT_EQ(owner0_.runtime().rrefs().stats().forks, 0u);
  EXPECT_EQ(trainer_->ToHere({cycle->rref}).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(trainer_->RpcSync("owner0", Named("about"), {cycle->rref}).status().code(),
            absl::StatusCode::kFailedPrecondition);
  cycle->self.reset();
}

TEST_F(ReferencesTest, RREF_38_HeldReferencesAreReportedAndOnRequestAnError) {
  auto other = Start("trainer1");
  RRef held = Must(other->Remote("owner0", Named("echo"), {1}));
  ASSERT_TRUE(held.confirmed().Wait().ok());
  ShutdownOptions strict;
  strict.refuse_held_references = true;
  const absl::Status refused = other->Shutdown(strict);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), HasSubstr(held.value_id().ToString()));
  EXPECT_THAT(std::string(refused.message()), HasSubstr(held.body()->fork_id().ToString()));
  EXPECT_EQ(other->NewContext().status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(trainer_->Shutdown(strict).ok()) << "it holds none";
}

TEST_F(ReferencesTest, RREF_49_SharingWhileTheLastHandleGoesIsSafe) {
  for (int i = 0; i < 50; ++i) {
    RRef shared = Make("owner0", i);
    Future<Values> call = trainer_->RpcAsync("owner1", Named("fetch"), {shared});
    std::thread drops([&] { shared = RRef(); });
    drops.join();
    EXPECT_EQ(IntOf(Must(call.Wait())[0]), i);
  }
  WaitUntilReleased();
}

TEST_F(ReferencesTest, RREF_51_AnIdThatIsNotThereFailsAtOnce) {
  RRef gone = Make("owner0", 1);
  ASSERT_TRUE(owner0_.runtime().store().Erase(gone.value_id()));
  const absl::Status fetched = trainer_->ToHere({gone}).status();
  EXPECT_EQ(fetched.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(fetched.message()), HasSubstr(gone.value_id().ToString()));
  EXPECT_EQ(trainer_->RpcSync("owner1", Named("fetch"), {gone}).status().code(),
            absl::StatusCode::kNotFound);
}

// ---- objects

TEST_F(ReferencesTest, RREF_41_RREF_42_MethodsOfAnObjectInAllModes) {
  RRef log = Must(trainer_->Remote("owner0", Named("new_log"), {}));
  Must(trainer_->RpcSync("owner0", Named("append"), {log, 1}));
  ObjectProxy proxy(*trainer_, log);
  EXPECT_EQ(IntOf(Must(proxy.RpcSync("append", {2}))[0]), 2);
  EXPECT_EQ(IntOf(Must(proxy.RpcAsync("append", {3}).Wait())[0]), 3);
  RRef size = Must(proxy.Remote("append", {4}));
  EXPECT_EQ(Fetched(size), 4);
  EXPECT_THAT(IntsOf(Must(proxy.RpcSync("all", {}))[0]), ElementsAre(1, 2, 3, 4));
  EXPECT_EQ(proxy.RpcSync("appendix", {}).status().code(), absl::StatusCode::kNotFound);
  ObjectProxy no_log(*trainer_, Make("owner0", 7));
  EXPECT_EQ(no_log.RpcSync("append", {1}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(trainer_->RpcSync("owner0", Named("append"), {1}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(ReferencesTest, RREF_43_TheTimeoutCoversTheWaitForTheObject) {
  RRef slow = Must(trainer_->Remote("owner0", Named("park"), {}));
  CallOptions shortly;
  shortly.timeout = absl::Milliseconds(20);
  ObjectProxy proxy(*trainer_, slow);
  EXPECT_EQ(proxy.RpcSync("append", {1}, shortly).status().code(),
            absl::StatusCode::kDeadlineExceeded);
  parking_.Take().Set(Values{Value(std::shared_ptr<store::Object>(std::make_shared<Log>()))});
  EXPECT_EQ(IntOf(Must(proxy.RpcSync("append", {1}))[0]), 1);
}

TEST_F(ReferencesTest, RREF_44_AsynchronousMethods) {
  ObjectProxy proxy(*trainer_, Must(trainer_->Remote("owner0", Named("new_log"), {})));
  Future<Values> later = proxy.RpcAsync("append_later", {5});
  Promise<Values> go = parking_.Take();
  EXPECT_FALSE(later.IsReady());
  go.Set(Values{});
  EXPECT_EQ(IntOf(Must(later.Wait())[0]), 1);
}

TEST_F(ReferencesTest, RREF_47_BackwardFromAReference) {
  RRef w = MakeParameter(*trainer_, "owner0", "w", Tensor::Of<float>({2}, {3, 4}));
  for (const char* callee : {"owner0", "trainer0"}) {
    Context context = Must(trainer_->NewContext());
    Values fetched = Must(trainer_->ToHere({w}, {absl::Seconds(60), &context}));
    CallOptions options;
    options.context = &context;
    RRef square = Must(
        trainer_->Remote(callee, Function::Operator("mul", 2), {fetched[0], fetched[0]}, options));
    RRef sum = Must(trainer_->Remote(callee, Function::Operator("sum", 1), {square}, options));
    ASSERT_TRUE(context.Backward(sum).ok()) << callee;
    EXPECT_THAT(Elements(Must(context.Gradient(w))), ElementsAre(6, 8));
    EXPECT_EQ(context.Backward(square).code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(context.Backward(Make(callee, 7)).code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(context.Backward(Make(callee, Tensor::Scalar(1.0f))).code(),
              absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace psd
