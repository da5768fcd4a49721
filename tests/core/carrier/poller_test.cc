// Threads that complete the tags of a completion queue.

#include "core/carrier/grpc/poller.h"

#include <grpcpp/alarm.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <utility>

#include "core/base/mutex.h"
#include "core/base/tsan.h"
#include "core/carrier/grpc/completion_tag.h"

namespace psd::carrier {
namespace {

class Event {
 public:
  void Set() {
    {
      MutexLock lock(mutex_);
      set_ = true;
    }
    changed_.NotifyAll();
  }
  void Wait() {
    MutexLock lock(mutex_);
    while (!set_) changed_.Wait(mutex_);
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  bool set_ PSD_GUARDED_BY(mutex_) = false;
};

// A task that a poller completes.
class Work : public CompletionTag {
 public:
  explicit Work(std::function<void()> run) : run_(std::move(run)) {}
  void Complete(bool) override { run_(); }

  void Start(Poller& poller) {
    CompletionTag* tag = this;
    PSD_TSAN_RELEASE(tag);
    alarm_.Set(poller.queue(), gpr_now(GPR_CLOCK_MONOTONIC), tag);
  }

 private:
  const std::function<void()> run_;
  grpc::Alarm alarm_;
};

std::unique_ptr<Poller> NewPoller(int threads) {
  auto poller = Poller::Create(threads);
  (*poller)->Watch(std::make_unique<grpc::CompletionQueue>());
  return *std::move(poller);
}

TEST(PollerTest, CompletesWhatItsQueueHandsBack) {
  Event done;
  Work work([&] { done.Set(); });
  auto poller = NewPoller(2);
  work.Start(*poller);
  done.Wait();
}

TEST(PollerTest, StopsWithoutHavingHadAnythingToDo) {
  NewPoller(1)->Stop();
}

TEST(PollerTest, StopsWithoutAQueue) {
  auto poller = Poller::Create(2);
  ASSERT_TRUE(poller.ok());
  EXPECT_EQ((*poller)->queue(), nullptr);
  (*poller)->Stop();
}

}  // namespace
}  // namespace psd::carrier
