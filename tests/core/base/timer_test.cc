#include "core/base/timer.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "core/base/future.h"

namespace psd {
namespace {

// Returns when all tasks that were due before have run. The queue runs one task after another.
void Drain(TimerQueue& timers, const Clock& clock) {
  Promise<Unit> done;
  timers.RunAt(clock.Now(), [done] { done.Set(Unit{}); });
  (void)done.future().Wait();
}

TEST(TimerQueueTest, RunsOnTheSteadyClock) {
  TimerQueue timers;
  const absl::Time start = Clock::Steady().Now();
  Promise<absl::Time> ran;
  EXPECT_NE(timers.RunAfter(absl::Milliseconds(5), [&] { ran.Set(Clock::Steady().Now()); }), 0u);
  EXPECT_GE(*ran.future().Wait() - start, absl::Milliseconds(5));
}

TEST(TimerQueueTest, AnEarlierTaskOvertakesALaterOne) {
  TimerQueue timers;
  std::atomic<bool> late{false};
  timers.RunAfter(absl::Hours(1), [&] { late = true; });
  Promise<Unit> soon;
  timers.RunAfter(absl::Milliseconds(1), [&] { soon.Set(Unit{}); });
  (void)soon.future().Wait();
  EXPECT_FALSE(late);
}

TEST(TimerQueueTest, WaitsForAFakeClock) {
  FakeClock clock;
  TimerQueue timers(clock);
  std::atomic<int> ran{0};
  timers.RunAfter(absl::Seconds(10), [&] { ++ran; });
  clock.Advance(absl::Seconds(9));
  Drain(timers, clock);
  EXPECT_EQ(ran, 0);
  clock.Advance(absl::Seconds(1));
  Drain(timers, clock);
  EXPECT_EQ(ran, 1);
}

TEST(TimerQueueTest, PollIsEnoughAfterAnAdvance) {
  for (int round = 0; round < 500; ++round) {
    FakeClock clock;
    TimerQueue timers(clock);
    Promise<Unit> ran;
    timers.RunAfter(absl::Hours(1), [&] { ran.Set(Unit{}); });
    clock.Advance(absl::Hours(1));
    timers.Poll();
    EXPECT_TRUE(ran.future().Wait().ok());  // if a wake-up is lost, this waits for an hour
  }
}

TEST(TimerQueueTest, RunsByTimeThenByOrderOfRequest) {
  FakeClock clock;
  std::vector<int> order;
  TimerQueue timers(clock);
  const absl::Time start = clock.Now();
  timers.RunAt(start + absl::Seconds(3), [&] { order.push_back(3); });
  timers.RunAt(start + absl::Seconds(1), [&] { order.push_back(1); });
  timers.RunAt(start + absl::Seconds(2), [&] { order.push_back(2); });
  timers.RunAt(start + absl::Seconds(2), [&] { order.push_back(22); });
  clock.Advance(absl::Seconds(3));
  Drain(timers, clock);
  EXPECT_EQ(order, (std::vector<int>{1, 2, 22, 3}));
}

TEST(TimerQueueTest, CancelDropsTheTaskOnce) {
  FakeClock clock;
  TimerQueue timers(clock);
  auto owned = std::make_shared<int>(0);
  std::atomic<int> ran{0};
  TimerQueue::Id id = timers.RunAfter(absl::Seconds(1), [&ran, owned] { ++ran; });
  EXPECT_EQ(owned.use_count(), 2);
  EXPECT_TRUE(timers.Cancel(id));
  EXPECT_EQ(owned.use_count(), 1);
  EXPECT_FALSE(timers.Cancel(id));
  EXPECT_FALSE(timers.Cancel(0));
  EXPECT_FALSE(timers.Cancel(id + 1000));
  clock.Advance(absl::Seconds(2));
  Drain(timers, clock);
  EXPECT_EQ(ran, 0);
}

TEST(TimerQueueTest, CancelAfterTheRunIsFalse) {
  FakeClock clock;
  TimerQueue timers(clock);
  TimerQueue::Id id = timers.RunAt(clock.Now(), [] {});
  Drain(timers, clock);
  EXPECT_FALSE(timers.Cancel(id));
}

TEST(TimerQueueTest, ATaskMayAskForAnotherAndCancelOthers) {
  FakeClock clock;
  TimerQueue timers(clock);
  std::atomic<int> dropped{0};
  TimerQueue::Id victim = timers.RunAfter(absl::Hours(1), [] {});
  Promise<Unit> done;
  timers.RunAt(clock.Now(), [&] {
    if (timers.Cancel(victim)) ++dropped;
    timers.RunAt(clock.Now(), [&] { done.Set(Unit{}); });
  });
  (void)done.future().Wait();
  EXPECT_EQ(dropped, 1);
}

TEST(TimerQueueTest, StopDropsWhatHasNotRun) {
  FakeClock clock;
  TimerQueue timers(clock);
  auto owned = std::make_shared<int>(0);
  timers.RunAfter(absl::Seconds(1), [owned] { FAIL(); });
  timers.Stop();
  EXPECT_EQ(owned.use_count(), 1);
  timers.RunAt(clock.Now(), [owned] { FAIL(); });
  EXPECT_EQ(owned.use_count(), 1);
  timers.Stop();
}

TEST(TimerQueueTest, InfiniteTimesNeverRun) {
  TimerQueue timers;
  TimerQueue::Id id = timers.RunAt(absl::InfiniteFuture(), [] { FAIL(); });
  Drain(timers, Clock::Steady());
  EXPECT_TRUE(timers.Cancel(id));
  timers.RunAt(absl::InfinitePast(), [] {});
  Drain(timers, Clock::Steady());
}

TEST(TimerQueueTest, EachOfManyEitherRunsOrIsCancelled) {
  TimerQueue timers;
  std::atomic<int> ran{0}, cancelled{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int j = 0; j < 500; ++j) {
        TimerQueue::Id id = timers.RunAfter(absl::Microseconds(j % 7), [&] { ++ran; });
        if (timers.Cancel(id)) ++cancelled;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  // Tasks that are still queued are due within microseconds, before this one.
  Promise<Unit> last;
  timers.RunAfter(absl::Milliseconds(1), [last] { last.Set(Unit{}); });
  (void)last.future().Wait();
  EXPECT_EQ(ran + cancelled, 2000);
}

}  // namespace
}  // namespace psd
