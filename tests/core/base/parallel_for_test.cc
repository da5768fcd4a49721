#include "core/base/parallel_for.h"

#include <atomic>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "core/base/executor.h"
#include "core/base/thread_pool.h"
#include "gtest/gtest.h"

namespace psd {
namespace {

// Keeps tasks until it is told to run them. Accepts at most `room` tasks.
class LateExecutor : public Executor {
 public:
  explicit LateExecutor(size_t room) : room_(room) {}
  absl::Status Submit(Task task) override {
    if (tasks_.size() >= room_) return absl::ResourceExhaustedError("full");
    tasks_.push_back(std::move(task));
    return absl::OkStatus();
  }
  size_t waiting() const { return tasks_.size(); }
  void RunAll() {
    for (Task& task : tasks_) task();
    tasks_.clear();
  }

 private:
  const size_t room_;
  std::vector<Task> tasks_;
};

std::vector<int> CallsOf(const Helpers& helpers, size_t count) {
  std::vector<std::atomic<int>> calls(count);
  ParallelFor(helpers, count, [&](size_t i) { ++calls[i]; });
  return {calls.begin(), calls.end()};
}

TEST(ParallelForTest, CallsEachOnce) {
  for (int threads : {1, 2, 5}) {
    ThreadPoolOptions options;
    options.threads = threads;
    ThreadPool pool(options);
    for (size_t count : {0, 1, 2, 3, 1000})
      EXPECT_EQ(CallsOf({&pool, threads}, count), std::vector<int>(count, 1)) << threads;
  }
}

TEST(ParallelForTest, WithoutHelpersStaysHere) {
  InlineExecutor executor;
  EXPECT_EQ(CallsOf({}, 3), std::vector<int>(3, 1));
  EXPECT_EQ(CallsOf({nullptr, 4}, 3), std::vector<int>(3, 1));
  EXPECT_EQ(CallsOf({&executor, -1}, 3), std::vector<int>(3, 1));
}

TEST(ParallelForTest, NeverWaitsForAHelperToBegin) {
  LateExecutor executor(100);
  EXPECT_EQ(CallsOf({&executor, 3}, 10), std::vector<int>(10, 1));
  EXPECT_EQ(executor.waiting(), 3u);
  executor.RunAll();  // there is no work left, and the function is gone
}

TEST(ParallelForTest, AsksForNoMoreHelpersThanThereIsWork) {
  LateExecutor executor(100);
  EXPECT_EQ(CallsOf({&executor, 50}, 3), std::vector<int>(3, 1));
  EXPECT_EQ(executor.waiting(), 2u);
}

TEST(ParallelForTest, AFullExecutorIsNoFailure) {
  LateExecutor full(0), nearly(1);
  EXPECT_EQ(CallsOf({&full, 3}, 10), std::vector<int>(10, 1));
  EXPECT_EQ(CallsOf({&nearly, 3}, 10), std::vector<int>(10, 1));
  nearly.RunAll();
}

// Every thread of the pool runs a loop that asks the pool for help.
TEST(ParallelForTest, NestsOnAPoolsOwnThreads) {
  ThreadPoolOptions options;
  options.threads = 2;
  ThreadPool pool(options);
  std::atomic<int> calls = 0;
  ParallelFor({&pool, 2}, 8, [&](size_t) { ParallelFor({&pool, 2}, 8, [&](size_t) { ++calls; }); });
  EXPECT_EQ(calls, 64);
}

// Two calls wait for each other, so both must run at the same time.
TEST(ParallelForTest, HelpersJoinIn) {
  ThreadPool pool({});
  std::atomic<int> begun = 0;
  std::vector<std::thread::id> threads(2);
  ParallelFor({&pool, 1}, 2, [&](size_t i) {
    threads[i] = std::this_thread::get_id();
    for (++begun; begun < 2;) std::this_thread::yield();
  });
  EXPECT_NE(threads[0], threads[1]);
}

}  // namespace
}  // namespace psd
