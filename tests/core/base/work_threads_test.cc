#include "core/base/work_threads.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "core/base/executor.h"
#include "core/base/future.h"
#include "core/base/thread_pool.h"

namespace psd {
namespace {

ThreadPoolOptions Options(int threads) {
  ThreadPoolOptions options;
  options.threads = threads;
  return options;
}

WorkLabel UserWork(uint64_t session) {
  return {WorkLabel::Kind::kUser, {1, session}};
}

TEST(WorkThreadsTest, OwnWorkFindsAThreadThoughUsersHoldAllTheirs) {
  for (int threads : {1, 3}) {
    ThreadPoolOptions options = Options(threads);
    WorkThreads pool(options);
    Promise<Unit> open;
    std::vector<Future<Unit>> entered;
    for (int i = 0; i < 10; ++i) {
      Promise<Unit> mine;
      entered.push_back(mine.future());
      // The task spins, so the pool does not notice that it waits.
      auto wait = [mine, open = open.future()] {
        mine.Set(Unit{});
        while (!open.IsReady()) std::this_thread::yield();
      };
      ASSERT_TRUE(pool.SubmitAs(UserWork(static_cast<uint64_t>(i)), wait).ok());
    }
    for (int i = 0; i < threads; ++i) (void)entered[static_cast<size_t>(i)].Wait();
    Promise<Unit> own;
    ASSERT_TRUE(pool.Submit([own] { own.Set(Unit{}); }).ok());
    EXPECT_TRUE(own.future().Wait().ok());
    EXPECT_FALSE(entered[static_cast<size_t>(threads)].IsReady()) << "no more than its threads";
    open.Set(Unit{});
  }
}

TEST(WorkThreadsTest, TheSystemPrefersOwnWork) {
  WorkThreads pool(Options(1));
  Promise<int> own, users;
  const auto niceness = [] { return getpriority(PRIO_PROCESS, 0); };
  ASSERT_TRUE(pool.Submit([=] { own.Set(niceness()); }).ok());
  ASSERT_TRUE(pool.SubmitAs(UserWork(1), [=] { users.Set(niceness()); }).ok());
  EXPECT_EQ(*own.future().Wait(), niceness());
  EXPECT_EQ(*users.future().Wait(), std::min(niceness() + 5, 19));

  // A thread that one of the users' threads adds has the same value.
  Promise<int> added;
  ASSERT_TRUE(pool.SubmitAs(UserWork(1),
                            [&pool, added, niceness] {
                              Promise<int> inner;
                              ASSERT_TRUE(
                                  pool.SubmitAs(UserWork(2), [=] { inner.Set(niceness()); }).ok());
                              added.Set(*inner.future().Wait());
                            })
                  .ok());
  EXPECT_EQ(*added.future().Wait(), std::min(niceness() + 5, 19));
}

// This happens when a client keeps reading rows: its requests are own work, and there is always one
// more.
TEST(WorkThreadsTest, OwnWorkWithoutEndLeavesOneThreadToUsers) {
  ThreadPoolOptions options = Options(1);
  WorkThreads pool(options);
  std::atomic<bool> stop{false};
  std::function<void()> again = [&] {
    const bool submitted = pool.Submit([&] { again(); }).ok();
    EXPECT_TRUE(submitted || stop);
  };
  for (int i = 0; i < 10; ++i) again();
  int users = 0;  // a user's tasks run one at a time
  for (uint64_t i = 0; i < 100; ++i) {
    Promise<Unit> done;
    ASSERT_TRUE(pool.SubmitAs(UserWork(i),
                              [&users, done] {
                                ++users;
                                done.Set(Unit{});
                              })
                    .ok());
    EXPECT_TRUE(done.future().Wait().ok());
  }
  EXPECT_EQ(users, 100);
  stop = true;
  pool.Shutdown();  // its tasks use the function above
}

// A waits for B. Both are user tasks, on one thread.
TEST(WorkThreadsTest, AWaitingUserLendsItsPlaceAndOwnWorkFindsAThread) {
  ThreadPoolOptions options = Options(1);
  WorkThreads pool(options);
  Promise<int> outer;
  ASSERT_TRUE(pool.SubmitAs(UserWork(1),
                            [&] {
                              Promise<int> inner;
                              ASSERT_TRUE(
                                  pool.SubmitAs(UserWork(2),
                                                [&pool, inner] {
                                                  Promise<Unit> own;
                                                  ASSERT_TRUE(
                                                      pool.Submit([own] { own.Set(Unit{}); }).ok());
                                                  while (!own.future().IsReady())
                                                    std::this_thread::yield();
                                                  inner.Set(41);
                                                })
                                      .ok());
                              outer.Set(*inner.future().Wait() + 1);
                            })
                  .ok());
  EXPECT_EQ(*outer.future().Wait(), 42);
}

// The functions of one session wait, and there may be any number of them. Another session's
// function still gets a thread.
TEST(WorkThreadsTest, WhoeverWaitsInManyTasksLeavesThreadsToOthers) {
  ThreadPoolOptions options = Options(1);
  options.max_compensation = 4;
  WorkThreads pool(options);
  Promise<Unit> open;
  std::vector<Future<Unit>> entered;
  for (int i = 0; i < 10; ++i) {
    Promise<Unit> mine;
    entered.push_back(mine.future());
    ASSERT_TRUE(pool.SubmitAs(UserWork(1),
                              [mine, wait = open.future()] {
                                mine.Set(Unit{});
                                (void)wait.Wait();
                              })
                    .ok());
  }
  for (size_t i = 0; i < 3; ++i) (void)entered[i].Wait();
  Promise<Unit> other;
  ASSERT_TRUE(pool.SubmitAs(UserWork(2), [other] { other.Set(Unit{}); }).ok());
  EXPECT_TRUE(other.future().Wait().ok());
  EXPECT_FALSE(entered[3].IsReady()) << "its own thread, and half of those that are added";
  open.Set(Unit{});
  for (const Future<Unit>& each : entered) EXPECT_TRUE(each.Wait().ok());
}

TEST(WorkThreadsTest, ShutdownRunsWhatUsersQueued) {
  ThreadPoolOptions options = Options(2);
  WorkThreads pool(options);
  std::atomic<int> ran{0};
  for (uint64_t i = 0; i < 100; ++i) {
    ASSERT_TRUE(pool.SubmitAs(UserWork(i % 7), [&] { ++ran; }).ok());
  }
  pool.Shutdown();
  EXPECT_EQ(ran, 100);
  EXPECT_EQ(pool.stats().threads, 0);
}

// A user's task that still waits in the queue may need own work.
TEST(WorkThreadsTest, OwnWorkOfQueuedUsersRunsDuringShutdown) {
  for (int round = 0; round < 50; ++round) {
    WorkThreads pool(Options(1));
    std::atomic<int> result{0};
    for (uint64_t i = 0; i < 5; ++i) {
      ASSERT_TRUE(pool.SubmitAs(UserWork(i),
                                [&] {
                                  Promise<int> own;
                                  ASSERT_TRUE(pool.Submit([own] { own.Set(1); }).ok());
                                  result += *own.future().Wait();
                                })
                      .ok());
    }
    pool.Shutdown();
    EXPECT_EQ(result, 5);
  }
}

}  // namespace
}  // namespace psd
