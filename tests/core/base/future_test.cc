#include "core/base/future.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "core/base/executor.h"
#include "core/base/thread_pool.h"
#include "core/base/wait_helper.h"

namespace psd {
namespace {

TEST(FutureTest, HandsOverAValue) {
  Promise<int> promise;
  Future<int> future = promise.future();
  EXPECT_TRUE(future.valid());
  EXPECT_FALSE(future.IsReady());
  EXPECT_TRUE(promise.Set(7));
  EXPECT_TRUE(future.IsReady());
  EXPECT_EQ(*future.Wait(), 7);
  EXPECT_EQ(*future.Wait(), 7);
}

TEST(FutureTest, RPC_21_HandsOverAnErrorTwice) {
  Promise<int> promise;
  promise.Set(absl::AbortedError("x"));
  Future<int> future = promise.future();
  EXPECT_EQ(future.Wait().status(), absl::AbortedError("x"));
  EXPECT_EQ(future.Wait().status(), absl::AbortedError("x"));
  EXPECT_TRUE(future.IsReady());
}

TEST(FutureTest, DefaultIsInvalid) {
  EXPECT_FALSE(Future<int>().valid());
}

TEST(FutureTest, ReadyIsReady) {
  EXPECT_EQ(*Future<int>::Ready(3).Wait(), 3);
  EXPECT_EQ(Future<int>::Ready(absl::AbortedError("x")).Wait().status(), absl::AbortedError("x"));
}

TEST(FutureTest, RPC_22_OnlyTheFirstSetCounts) {
  Promise<int> promise;
  EXPECT_TRUE(promise.Set(1));
  EXPECT_FALSE(promise.Set(2));
  EXPECT_FALSE(promise.Set(absl::AbortedError("x")));
  EXPECT_EQ(*promise.future().Wait(), 1);
}

TEST(FutureTest, AMoveOnlyValue) {
  Promise<std::unique_ptr<int>> promise;
  Future<std::unique_ptr<int>> future = promise.future();
  promise.Set(std::make_unique<int>(5));
  EXPECT_EQ(**future.Wait(), 5);
}

Future<std::string> LongString() {
  return Future<std::string>::Ready(std::string(1000, 'x'));
}

absl::StatusOr<size_t> SizeOfTemporary() {
  PSD_RETURN_IF_ERROR(LongString().Wait());
  PSD_ASSIGN_OR_RETURN(std::string text, LongString().Wait());
  return text.size();
}

TEST(FutureTest, WaitOnATemporaryOutlivesIt) {
  const auto& result = LongString().Wait();
  EXPECT_EQ(result->size(), 1000u);
  EXPECT_EQ(*SizeOfTemporary(), 1000u);
}

TEST(FutureTest, WaitBlocksUntilAnotherThreadSets) {
  Promise<int> promise;
  std::thread setter([promise] { promise.Set(9); });
  EXPECT_EQ(*promise.future().Wait(), 9);
  setter.join();
}

TEST(FutureTest, WaitForGivesUpAndTheWorkGoesOn) {
  Promise<int> promise;
  EXPECT_FALSE(promise.future().WaitFor(absl::Milliseconds(1)));
  EXPECT_FALSE(promise.future().WaitFor(absl::ZeroDuration()));
  EXPECT_FALSE(promise.future().WaitFor(-absl::InfiniteDuration()));
  promise.Set(1);
  EXPECT_TRUE(promise.future().WaitFor(absl::ZeroDuration()));
  EXPECT_TRUE(promise.future().WaitFor(-absl::Seconds(1)));
}

TEST(FutureTest, WaitForTakesAnInfiniteTimeout) {
  Promise<int> promise;
  std::thread setter([promise] { promise.Set(9); });
  EXPECT_TRUE(promise.future().WaitFor(absl::InfiniteDuration()));
  setter.join();
}

TEST(OnReadyTest, RPC_24_RPC_27_RunsEachCallbackOnceBeforeOrAfter) {
  Promise<int> promise;
  std::vector<int> calls;
  promise.future().OnReady([&](const absl::StatusOr<int>& r) { calls.push_back(*r); });
  promise.future().OnReady([&](const absl::StatusOr<int>& r) { calls.push_back(*r + 1); });
  EXPECT_TRUE(calls.empty());
  promise.Set(1);
  EXPECT_EQ(calls, (std::vector<int>{1, 2}));
  promise.future().OnReady([&](const absl::StatusOr<int>& r) { calls.push_back(*r + 2); });
  promise.Set(5);
  EXPECT_EQ(calls, (std::vector<int>{1, 2, 3}));
}

// Keeps tasks until the test runs them.
class LaterExecutor : public Executor {
 public:
  absl::Status Submit(Task task) override {
    if (closed) return absl::FailedPreconditionError("closed");
    tasks.push_back(std::move(task));
    return absl::OkStatus();
  }
  void RunAll() {
    for (Task& task : std::exchange(tasks, {})) task();
  }
  std::vector<Task> tasks;
  bool closed = false;
};

TEST(OnReadyTest, RPC_27_AHandleWithAnExecutorRunsItsCallbacksThere) {
  auto executor = std::make_shared<LaterExecutor>();
  Promise<int> promise;
  std::vector<int> calls;
  const Future<int> handle = promise.future().On(executor);
  handle.OnReady([&](const absl::StatusOr<int>& r) { calls.push_back(*r); });
  Future<int> next = handle.Then([&](const absl::StatusOr<int>& r) { return *r + 1; });
  next.OnReady([&](const absl::StatusOr<int>& r) { calls.push_back(*r); });
  promise.future().OnReady([&](const absl::StatusOr<int>& r) { calls.push_back(-*r); });
  promise.Set(1);
  EXPECT_EQ(calls, (std::vector<int>{-1})) << "only that of the handle without one";
  EXPECT_TRUE(handle.IsReady()) << "who waits, waits for nobody else";
  EXPECT_FALSE(next.IsReady());
  while (!executor->tasks.empty()) executor->RunAll();
  EXPECT_EQ(calls, (std::vector<int>{-1, 1, 2}));
  handle.OnReady([&](const absl::StatusOr<int>& r) { calls.push_back(*r + 2); });
  EXPECT_EQ(calls.back(), 3) << "ready: at once, here";
}

TEST(OnReadyTest, WhatACallbackHoldsEndsWhereItRuns) {
  auto executor = std::make_shared<LaterExecutor>();
  auto held = std::make_shared<int>(0);
  std::weak_ptr<int> watch = held;
  Promise<int> promise;
  promise.future().On(executor).OnReady([held = std::move(held)](const absl::StatusOr<int>&) {});
  promise.Set(1);
  EXPECT_FALSE(watch.expired());
  executor->RunAll();
  EXPECT_TRUE(watch.expired());
}

TEST(OnReadyTest, ACallbackRunsThoughItsExecutorHasEnded) {
  auto executor = std::make_shared<LaterExecutor>();
  executor->closed = true;
  int calls = 0;
  {
    Promise<int> promise;
    promise.future().On(executor).OnReady([&](const absl::StatusOr<int>&) { ++calls; });
    promise.future().On(executor).OnReady([&](const absl::StatusOr<int>& r) {
      EXPECT_EQ(r.status().code(), absl::StatusCode::kInternal) << "the promise was dropped";
      ++calls;
    });
  }
  EXPECT_EQ(calls, 2);
}

TEST(OnReadyTest, ACallbackMayUseTheFuture) {
  Promise<int> promise;
  int seen = 0;
  promise.future().OnReady([&](const absl::StatusOr<int>&) {
    EXPECT_TRUE(promise.future().IsReady());
    EXPECT_FALSE(promise.Set(2));
    promise.future().OnReady([&](const absl::StatusOr<int>& r) { seen = *r; });
  });
  promise.Set(1);
  EXPECT_EQ(seen, 1);
}

TEST(OnReadyTest, ACallbackMayDestroyEveryHandle) {
  auto promise = std::make_unique<Promise<std::string>>();
  std::string seen;
  promise->future().OnReady([&](const absl::StatusOr<std::string>&) { promise.reset(); });
  promise->future().OnReady([&](const absl::StatusOr<std::string>& r) { seen = *r; });
  promise->Set(std::string(100, 'y'));
  EXPECT_EQ(seen, std::string(100, 'y'));

  auto future = std::make_unique<Future<std::string>>(Future<std::string>::Ready("later"));
  future->OnReady([&](const absl::StatusOr<std::string>& r) {
    future.reset();
    seen = *r;
  });
  EXPECT_EQ(seen, "later");
}

TEST(OnReadyTest, CallbacksAreDestroyedAfterTheyRan) {
  Promise<int> promise;
  auto owned = std::make_shared<int>(0);
  promise.future().OnReady([owned](const absl::StatusOr<int>&) {});
  EXPECT_EQ(owned.use_count(), 2);
  promise.Set(1);
  EXPECT_EQ(owned.use_count(), 1);
}

TEST(ThenTest, ReturnsWhatTheFunctionReturns) {
  Promise<int> promise;
  Future<std::string> text =
      promise.future().Then([](const absl::StatusOr<int>& r) { return std::to_string(*r); });
  Future<Unit> status =
      promise.future().Then([](const absl::StatusOr<int>&) { return absl::OkStatus(); });
  Future<int> result = promise.future().Then(
      [](const absl::StatusOr<int>& r) -> absl::StatusOr<int> { return *r + 1; });
  promise.Set(41);
  EXPECT_EQ(*text.Wait(), "41");
  EXPECT_TRUE(status.Wait().ok());
  EXPECT_EQ(*result.Wait(), 42);
  EXPECT_EQ(*promise.future().Wait(), 41);
}

TEST(ThenTest, RPC_25_RunsAfterAnErrorToo) {
  Future<int> failed = Future<int>::Ready(absl::AbortedError("x"));
  Future<int> swallowed = failed.Then([](const absl::StatusOr<int>& r) { return r.ok() ? 1 : 2; });
  EXPECT_EQ(*swallowed.Wait(), 2);
  Future<Unit> passed_on = failed.Then([](const absl::StatusOr<int>& r) { return r.status(); });
  EXPECT_EQ(passed_on.Wait().status(), absl::AbortedError("x"));
  Future<int> replaced = failed.Then(
      [](const absl::StatusOr<int>&) -> absl::StatusOr<int> { return absl::InternalError("y"); });
  EXPECT_EQ(replaced.Wait().status(), absl::InternalError("y"));
}

TEST(ThenTest, RPC_23_ChainsOfTwentyKeepTheirOrder) {
  Promise<std::string> promise;
  Future<std::string> chain = promise.future();
  for (int i = 0; i < 20; ++i) {
    chain = chain.Then(
        [i](const absl::StatusOr<std::string>& r) { return *r + static_cast<char>('a' + i); });
  }
  promise.Set("");
  EXPECT_EQ(*chain.Wait(), "abcdefghijklmnopqrst");
}

TEST(ThenTest, WhatTheFunctionThrowsIsTheError) {
  Promise<int> promise;
  Future<int> of_value = promise.future().Then(
      [](const absl::StatusOr<int>&) -> int { throw std::runtime_error("by a value"); });
  Future<Unit> of_status = promise.future().Then(
      [](const absl::StatusOr<int>&) -> absl::Status { throw std::runtime_error("by a status"); });
  Future<int> of_anything =
      promise.future().Then([](const absl::StatusOr<int>&) -> absl::StatusOr<int> { throw 7; });
  Future<int> next = of_value.Then([](const absl::StatusOr<int>& result) { return result; });
  ASSERT_TRUE(promise.Set(1)) << "and the thread that set it goes on";
  EXPECT_EQ(of_value.Wait().status().code(), absl::StatusCode::kInternal);
  EXPECT_EQ(of_value.Wait().status().message(), "threw std::runtime_error: by a value");
  EXPECT_EQ(of_status.Wait().status().message(), "threw std::runtime_error: by a status");
  EXPECT_EQ(of_anything.Wait().status().message(), "threw int");
  EXPECT_EQ(next.Wait().status(), of_value.Wait().status());
}

TEST(ThenTest, WhatTheFunctionThrowsOnAnExecutorIsTheErrorToo) {
  auto pool = std::make_shared<ThreadPool>(ThreadPoolOptions{});
  Promise<int> promise;
  Future<int> thrown = promise.future().On(pool).Then(
      [](const absl::StatusOr<int>&) -> int { throw std::runtime_error("on a pool"); });
  promise.Set(1);
  EXPECT_EQ(thrown.Wait().status().message(), "threw std::runtime_error: on a pool");
}

TEST(ThenTest, TheFunctionRunsWithoutAHandleToTheResult) {
  Promise<int> promise;
  int ran = 0;
  promise.future().Then([&](const absl::StatusOr<int>&) { return ++ran; });
  promise.Set(1);
  EXPECT_EQ(ran, 1);
}

TEST(AbandonedTest, TheLastPromiseGoneIsAnError) {
  Future<int> future;
  {
    Promise<int> promise;
    future = promise.future();
    {
      Promise<int> copy = promise;
      Promise<int> moved = std::move(copy);
    }
    EXPECT_FALSE(future.IsReady());
  }
  ASSERT_TRUE(future.IsReady());
  EXPECT_EQ(future.Wait().status().code(), absl::StatusCode::kInternal);
  EXPECT_NE(future.Wait().status().message().find("promise abandoned"), absl::string_view::npos);
}

TEST(AbandonedTest, CallbacksAndChainsHearOfIt) {
  absl::Status seen;
  Future<Unit> chained;
  {
    Promise<int> promise;
    promise.future().OnReady([&](const absl::StatusOr<int>& r) { seen = r.status(); });
    chained = promise.future().Then([](const absl::StatusOr<int>& r) { return r.status(); });
  }
  EXPECT_EQ(seen.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(chained.Wait().status(), seen);
}

TEST(AbandonedTest, AssignmentAbandonsTheOldOne) {
  Promise<int> promise;
  Future<int> old = promise.future();
  promise = Promise<int>();
  EXPECT_EQ(old.Wait().status().code(), absl::StatusCode::kInternal);
  Promise<int>& same = promise;
  promise = same;
  EXPECT_FALSE(promise.future().IsReady());
  promise.Set(3);
  EXPECT_EQ(*promise.future().Wait(), 3);
}

TEST(AbandonedTest, ATaskDroppedByAnExecutorAbandons) {
  ThreadPool pool(ThreadPoolOptions{});
  pool.Shutdown();
  Promise<int> promise;
  Future<int> future = promise.future();
  EXPECT_FALSE(pool.Submit([promise = std::move(promise)] { promise.Set(1); }).ok());
  EXPECT_EQ(future.Wait().status().code(), absl::StatusCode::kInternal);
}

TEST(AbandonedTest, ASetResultStays) {
  Future<int> future;
  {
    Promise<int> promise;
    future = promise.future();
    promise.Set(1);
  }
  EXPECT_EQ(*future.Wait(), 1);
}

// Sets the result of a promise on the thread that helps.
class SettingHelper : public WaitHelper {
 public:
  void HelpUntil(absl::FunctionRef<bool()> done) override {
    EXPECT_FALSE(done());
    promise.Set(7);
    EXPECT_TRUE(done());
    ++helped;
  }
  Promise<int> promise;
  int helped = 0;
};

TEST(WaitHelperTest, AThreadThatWaitsHelps) {
  auto helper = std::make_shared<SettingHelper>();
  helper->promise.SetHelper(helper);
  EXPECT_EQ(*helper->promise.future().Wait(), 7);
  EXPECT_EQ(*helper->promise.future().Wait(), 7);
  EXPECT_EQ(helper->helped, 1) << "a result that is there needs no help";
}

// Its work for the result waits for another result, with another helper.
TEST(WaitHelperTest, AThreadThatHelpsKnowsForWhichResultItWaits) {
  class Nested : public WaitHelper {
   public:
    void HelpUntil(absl::FunctionRef<bool()> done) override {
      outer_before = promise.IsAwaitedHere();
      inner.promise.future().Wait().IgnoreError();
      inner_after = inner.promise.IsAwaitedHere();
      outer_after = promise.IsAwaitedHere();
      std::thread([&] { elsewhere = promise.IsAwaitedHere(); }).join();
      promise.Set(1);
      EXPECT_TRUE(done());
    }
    Promise<int> promise;
    struct Inner : WaitHelper {
      void HelpUntil(absl::FunctionRef<bool()> /*done*/) override {
        awaited = promise.IsAwaitedHere();
        promise.Set(2);
      }
      Promise<int> promise;
      bool awaited = false;
    };
    Inner inner;
    bool outer_before = false, outer_after = false, inner_after = true, elsewhere = true;
  };
  auto helper = std::make_shared<Nested>();
  helper->promise.SetHelper(helper);
  helper->inner.promise.SetHelper(std::shared_ptr<WaitHelper>(helper, &helper->inner));
  EXPECT_FALSE(helper->promise.IsAwaitedHere());
  EXPECT_EQ(*helper->promise.future().Wait(), 1);
  EXPECT_TRUE(helper->outer_before && helper->inner.awaited && helper->outer_after);
  EXPECT_FALSE(helper->inner_after || helper->elsewhere);
  EXPECT_FALSE(helper->promise.IsAwaitedHere());
}

TEST(WaitHelperTest, AThreadThatWaitsForATimeHelpsToo) {
  auto helper = std::make_shared<SettingHelper>();
  helper->promise.SetHelper(helper);
  EXPECT_TRUE(helper->promise.future().WaitFor(absl::Hours(1)));
}

TEST(WaitHelperTest, AThreadThatDoesNotWaitDoesNotHelp) {
  auto helper = std::make_shared<SettingHelper>();
  helper->promise.SetHelper(helper);
  EXPECT_FALSE(helper->promise.future().WaitFor(absl::ZeroDuration()));
  EXPECT_EQ(helper->helped, 0);
}

// Helps until it is told to stop.
class EndlessHelper : public WaitHelper {
 public:
  void HelpUntil(absl::FunctionRef<bool()> done) override {
    while (!done()) {
    }
  }
};

TEST(WaitHelperTest, AThreadThatWaitsForATimeHelpsNoLonger) {
  const auto helper = std::make_shared<EndlessHelper>();
  const Promise<int> promise;
  promise.SetHelper(helper);
  EXPECT_FALSE(promise.future().WaitFor(absl::Milliseconds(1)));
}

TEST(WaitHelperTest, WhatFollowsFromAResultIsHelpedLikeIt) {
  auto helper = std::make_shared<SettingHelper>();
  helper->promise.SetHelper(helper);
  const auto next =
      helper->promise.future().Then([](const absl::StatusOr<int>& seven) { return *seven + 1; });
  const Promise<int> other;
  other.HelpLike(next);
  next.OnReady([&](const absl::StatusOr<int>& eight) { other.Set(*eight + 1); });
  EXPECT_EQ(*other.future().Wait(), 9);
  EXPECT_EQ(helper->helped, 1);
}

TEST(WaitHelperTest, AHelperThatIsGoneIsNotMissed) {
  const Promise<int> promise;
  promise.SetHelper(std::make_shared<SettingHelper>());
  EXPECT_FALSE(promise.future().WaitFor(absl::Milliseconds(1)));
}

TEST(FutureConcurrencyTest, OneSetterWinsAndEveryCallbackRunsOnce) {
  for (int round = 0; round < 200; ++round) {
    Promise<int> promise;
    std::atomic<int> won{0}, called{0}, sum{0};
    std::vector<std::thread> threads;
    for (int i = 1; i <= 3; ++i) {
      threads.emplace_back([&, i] { won += promise.Set(i) ? 1 : 0; });
      threads.emplace_back([&] {
        promise.future().OnReady([&](const absl::StatusOr<int>& r) {
          ++called;
          sum += *r;
        });
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(won, 1);
    EXPECT_EQ(called, 3);
    EXPECT_EQ(sum, 3 * *promise.future().Wait());
  }
}

TEST(FutureConcurrencyTest, WaitersMayDropTheLastHandleAtOnce) {
  for (int round = 0; round < 500; ++round) {
    auto promise = std::make_unique<Promise<std::string>>();
    std::thread waiter([future = promise->future()]() mutable {
      EXPECT_EQ(future.Wait()->size(), 64u);
      future = Future<std::string>();
    });
    promise->Set(std::string(64, 'z'));
    promise.reset();
    waiter.join();
  }
}

TEST(FutureConcurrencyTest, AbandonedByManyThreads) {
  for (int round = 0; round < 200; ++round) {
    Future<int> future;
    std::vector<std::thread> threads;
    {
      Promise<int> promise;
      future = promise.future();
      for (int i = 0; i < 3; ++i) threads.emplace_back([promise] { Promise<int> copy = promise; });
    }
    EXPECT_EQ(future.Wait().status().code(), absl::StatusCode::kInternal);
    for (std::thread& thread : threads) thread.join();
  }
}

}  // namespace
}  // namespace psd
