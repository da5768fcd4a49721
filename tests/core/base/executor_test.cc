#include "core/base/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/base/buffer.h"
#include "core/base/clock.h"
#include "core/base/executor.h"
#include "core/base/future.h"
#include "core/base/memory_budget.h"
#include "core/base/memory_scope.h"

namespace psd {
namespace {

ThreadPoolOptions Options(int threads, size_t max_queue = 10'000, int max_compensation = 256) {
  ThreadPoolOptions options;
  options.threads = threads;
  options.max_queue = max_queue;
  options.max_compensation = max_compensation;
  return options;
}

// Occupies one thread of a pool until it is opened. The pool does not compensate for this thread.
class Gate {
 public:
  explicit Gate(ThreadPool& pool) {
    EXPECT_TRUE(pool.Submit([this] { Block(); }).ok());
    MutexLock lock(mutex_);
    while (!entered_) changed_.Wait(mutex_);
  }
  ~Gate() { Open(); }

  void Open() {
    MutexLock lock(mutex_);
    open_ = true;
    changed_.NotifyAll();
    while (!left_) changed_.Wait(mutex_);
  }

 private:
  void Block() {
    MutexLock lock(mutex_);
    entered_ = true;
    changed_.NotifyAll();
    while (!open_) changed_.Wait(mutex_);
    left_ = true;
    changed_.NotifyAll();
  }

  Mutex mutex_;
  CondVar changed_;
  bool entered_ PSD_GUARDED_BY(mutex_) = false;
  bool open_ PSD_GUARDED_BY(mutex_) = false;
  bool left_ PSD_GUARDED_BY(mutex_) = false;
};

TEST(InlineExecutorTest, RunsAtOnceOnTheCaller) {
  InlineExecutor executor;
  std::thread::id where;
  EXPECT_TRUE(executor.Submit([&] { where = std::this_thread::get_id(); }).ok());
  EXPECT_EQ(where, std::this_thread::get_id());
}

TEST(ThreadPoolTest, RunsEveryTaskOnceInOrderOfSubmission) {
  std::vector<int> order;
  {
    ThreadPool pool(Options(1));
    for (int i = 0; i < 100; ++i) {
      ASSERT_TRUE(pool.Submit([&order, i] { order.push_back(i); }).ok());
    }
  }
  ASSERT_EQ(order.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(order[i], i);
}

TEST(ThreadPoolTest, RunsTasksSideBySide) {
  ThreadPool pool(Options(2));
  Promise<Unit> first, second;
  // Each of the tasks waits for the other one, so both must run at the same time.
  ASSERT_TRUE(pool.Submit([&, other = second.future()] {
                    first.Set(Unit{});
                    (void)other.Wait();
                  })
                  .ok());
  ASSERT_TRUE(pool.Submit([&, other = first.future()] {
                    second.Set(Unit{});
                    (void)other.Wait();
                  })
                  .ok());
  pool.Shutdown();
}

TEST(ThreadPoolTest, AtLeastOneThread) {
  std::atomic<int> ran{0};
  {
    ThreadPool pool(Options(0));
    EXPECT_EQ(pool.stats().threads, 1);
    ASSERT_TRUE(pool.Submit([&] { ++ran; }).ok());
  }
  EXPECT_EQ(ran, 1);
}

TEST(ThreadPoolTest, RefusesBeyondTheBoundAndDestroysTheTask) {
  ThreadPool pool(Options(1, 4));  // one flow may fill half of the four places
  Gate gate(pool);
  std::atomic<int> ran{0};
  ASSERT_TRUE(pool.Submit([&] { ++ran; }).ok());
  ASSERT_TRUE(pool.Submit([&] { ++ran; }).ok());
  EXPECT_EQ(pool.stats().queued, 2u);
  auto owned = std::make_shared<int>(0);
  absl::Status refused = pool.Submit([&, owned] { ++ran; });
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(refused.message().find("2 of its tasks"), absl::string_view::npos) << refused;
  EXPECT_EQ(owned.use_count(), 1);
  gate.Open();
  pool.Shutdown();
  EXPECT_EQ(ran, 2);
}

TEST(ThreadPoolTest, ARefusedTaskMayUseThePoolWhileItIsDestroyed) {
  ThreadPool pool(Options(1, /*max_queue=*/1));
  Gate gate(pool);
  ASSERT_TRUE(pool.Submit([] {}).ok());
  size_t queued = 0;
  auto on_destruction = [&](void*) { queued = pool.stats().queued; };
  std::shared_ptr<void> last(&pool, on_destruction);
  EXPECT_FALSE(pool.Submit([last = std::move(last)] {}).ok());
  EXPECT_EQ(queued, 1u);
  gate.Open();
}

TEST(ThreadPoolTest, ShutdownRunsWhatIsQueuedAndRefusesMore) {
  ThreadPool pool(Options(1));
  std::atomic<int> ran{0};
  {
    Gate gate(pool);
    for (int i = 0; i < 10; ++i) ASSERT_TRUE(pool.Submit([&] { ++ran; }).ok());
  }
  pool.Shutdown();
  EXPECT_EQ(ran, 10);
  EXPECT_EQ(pool.Submit([&] { ++ran; }).code(), absl::StatusCode::kFailedPrecondition);
  pool.Shutdown();
  EXPECT_EQ(ran, 10);
  EXPECT_EQ(pool.stats().threads, 0);
}

TEST(ThreadPoolTest, ATaskMaySubmit) {
  ThreadPool pool(Options(1));
  Promise<Unit> done;
  ASSERT_TRUE(pool.Submit([&] { EXPECT_TRUE(pool.Submit([&] { done.Set(Unit{}); }).ok()); }).ok());
  EXPECT_TRUE(done.future().Wait().ok());
}

TEST(ThreadPoolTest, DestroysATaskRightAfterItRan) {
  ThreadPool pool(Options(1));
  auto owned = std::make_shared<int>(0);
  std::weak_ptr<int> watch = owned;
  ASSERT_TRUE(pool.Submit([owned = std::move(owned)] {}).ok());
  Gate after(pool);
  EXPECT_TRUE(watch.expired());
}

TEST(ThreadPoolTest, ShutdownOnAPoolThreadIsABug) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        ThreadPool pool(Options(1));
        (void)pool.Submit([&] { pool.Shutdown(); });
        pool.Shutdown();
      },
      "cannot join itself");
}

// A task waits for another one on the same thread.
TEST(CompensationTest, AWaitingTaskLendsItsThread) {
  ThreadPool pool(Options(1));
  Promise<int> outer;
  ASSERT_TRUE(pool.Submit([&] {
                    Promise<int> inner;
                    ASSERT_TRUE(pool.Submit([inner] { inner.Set(41); }).ok());
                    outer.Set(*inner.future().Wait() + 1);
                  })
                  .ok());
  EXPECT_EQ(*outer.future().Wait(), 42);
  EXPECT_EQ(pool.stats().threads, 2);
}

int Nest(ThreadPool& pool, int depth) {
  if (depth == 0) return 0;
  Promise<int> inner;
  EXPECT_TRUE(pool.Submit([&pool, inner, depth] { inner.Set(Nest(pool, depth - 1)); }).ok());
  return *inner.future().Wait() + 1;
}

TEST(CompensationTest, WaitsNest) {
  ThreadPool pool(Options(1));
  Promise<int> done;
  ASSERT_TRUE(pool.Submit([&] { done.Set(Nest(pool, 50)); }).ok());
  EXPECT_EQ(*done.future().Wait(), 50);
}

TEST(CompensationTest, StopsAtTheCap) {
  ThreadPool pool(Options(1, 100, 2));
  Promise<Unit> open;
  std::vector<Future<Unit>> entered;
  for (int i = 0; i < 5; ++i) {
    Promise<Unit> mine;
    entered.push_back(mine.future());
    ASSERT_TRUE(pool.Submit([mine, wait = open.future()] {
                      mine.Set(Unit{});
                      (void)wait.Wait();
                    })
                    .ok());
  }
  for (int i = 0; i < 3; ++i) (void)entered[i].Wait();
  EXPECT_EQ(pool.stats().threads, 3);
  EXPECT_FALSE(entered[3].IsReady());
  open.Set(Unit{});
  pool.Shutdown();
  EXPECT_TRUE(entered[4].IsReady());
}

TEST(CompensationTest, AddedThreadsAreUsedAgain) {
  ThreadPool pool(Options(1));
  for (int round = 0; round < 20; ++round) {
    Promise<int> done;
    ASSERT_TRUE(pool.Submit([&pool, done] { done.Set(Nest(pool, 3)); }).ok());
    EXPECT_EQ(*done.future().Wait(), 3);
  }
  // Threads that return from a wait count as runnable again, so threads do not pile up.
  EXPECT_LE(pool.stats().threads, 8);
}

// The queued task that the running task waits for must run, although the pool shuts down.
TEST(CompensationTest, ShutdownDoesNotStrandAWaitingTask) {
  for (int round = 0; round < 50; ++round) {
    ThreadPool pool(Options(1));
    std::atomic<int> result{0};
    Promise<int> inner;
    ASSERT_TRUE(pool.Submit([&, wait = inner.future()] { result = *wait.Wait(); }).ok());
    ASSERT_TRUE(pool.Submit([inner] { inner.Set(7); }).ok());
    pool.Shutdown();
    EXPECT_EQ(result, 7);
  }
}

TEST(CompensationTest, DoesNothingOffThePool) {
  ThreadPool pool(Options(1));
  ScopedBlocking blocking;
  EXPECT_EQ(pool.stats().blocked, 0);
  EXPECT_EQ(pool.stats().threads, 1);
}

WorkLabel WorkOf(uint64_t session) {
  return {WorkLabel::Kind::kOwn, {1, session}};
}

// Tasks are charged for the time for which they hold a thread, not for the time for which they
// wait.
class FlowCostTest : public testing::Test {
 protected:
  FlowCostTest() {
    ThreadPoolOptions options = Options(1, 100, /*max_compensation=*/0);
    options.clock = &clock_;
    pool_ = std::make_unique<ThreadPool>(options);
  }
  void Add(uint64_t session, char name, const std::function<void()>& run) {
    ASSERT_TRUE(pool_
                    ->SubmitAs(WorkOf(session),
                               [this, name, run] {
                                 order_.push_back(name);
                                 run();
                               })
                    .ok());
  }
  // Runs the two tasks, and then three of either session. Returns the sessions in their order.
  std::string OrderAfter(const std::function<void()>& a, const std::function<void()>& b) {
    {
      Gate gate(*pool_);
      Add(1, 'a', a);
      Add(2, 'b', b);
      for (int i = 0; i < 3; ++i) {
        Add(1, 'a', [] {});
        Add(2, 'b', [] {});
      }
    }
    pool_->Shutdown();
    return order_;
  }

  FakeClock clock_;
  std::string order_;
  std::unique_ptr<ThreadPool> pool_;
};

TEST_F(FlowCostTest, TheFlowThatTookMostTimeIsServedLast) {
  EXPECT_EQ(OrderAfter([this] { clock_.Advance(absl::Seconds(1)); },
                       [this] {
                         ScopedBlocking blocking;
                         clock_.Advance(absl::Seconds(1));
                       }),
            "abbbbaaa");
}

TEST_F(FlowCostTest, TimeInWhichAWaitingTaskHelpsOthersIsNotItsOwn) {
  EXPECT_EQ(OrderAfter([this] { clock_.Advance(absl::Milliseconds(1)); },
                       [this] {
                         ScopedHelping helping;
                         clock_.Advance(absl::Seconds(1));
                         ScopedBlocking blocking;  // counts as a wait of the work for others
                         clock_.Advance(absl::Seconds(1));
                       }),
            "abbbbaaa");
}

TEST_F(FlowCostTest, AWaitOfHelpedWorkIsNotCreditedTwice) {
  EXPECT_EQ(OrderAfter([this] { clock_.Advance(absl::Milliseconds(1)); },
                       [this] {
                         clock_.Advance(absl::Seconds(1));
                         ScopedHelping helping;
                         ScopedBlocking blocking;
                         clock_.Advance(absl::Seconds(1));
                       }),
            "abaaabbb");
}

// Threads that were added for waiting tasks stay, but do not let more tasks run at once.
TEST(ThreadPoolTest, NoMoreTasksRunAtOnceThanItsThreadsAfterSomeHaveWaited) {
  ThreadPool pool(Options(2));
  Promise<int> done;
  ASSERT_TRUE(pool.Submit([&] { done.Set(Nest(pool, 5)); }).ok());
  EXPECT_EQ(*done.future().Wait(), 5);
  ASSERT_GT(pool.stats().threads, 2);
  std::atomic<int> running{0}, most{0};
  for (int i = 0; i < 200; ++i) {
    ASSERT_TRUE(pool.Submit([&] {
                      const int now = ++running;
                      for (int seen = most; seen < now && !most.compare_exchange_weak(seen, now);) {
                      }
                      absl::SleepFor(absl::Milliseconds(1));
                      --running;
                    })
                    .ok());
  }
  pool.Shutdown();
  EXPECT_LE(most, 2);
}

TEST(ThreadPoolTest, TasksDrawOnThePoolsMemory) {
  ThreadPoolOptions options = Options(1);
  options.memory = MemoryAccount::Create(0, NewHeapAllocator());
  MemoryAccount* found = nullptr;
  {
    ThreadPool pool(options);
    ASSERT_TRUE(pool.Submit([&] { found = MemoryScope::Current(); }).ok());
  }
  EXPECT_EQ(found, options.memory.get());
  EXPECT_EQ(MemoryScope::Current(), nullptr);
}

TEST(ThreadPoolTest, ManySubmitters) {
  std::atomic<int> ran{0};
  {
    ThreadPool pool(Options(3, 100'000));
    std::vector<std::thread> submitters;
    for (int i = 0; i < 4; ++i) {
      submitters.emplace_back([&] {
        for (int j = 0; j < 2000; ++j) ASSERT_TRUE(pool.Submit([&] { ++ran; }).ok());
      });
    }
    for (std::thread& submitter : submitters) submitter.join();
  }
  EXPECT_EQ(ran, 8000);
}

}  // namespace
}  // namespace psd
