// Callbacks that wait for other events of the same queue.

#include "core/carrier/grpc/poller.h"

#include <grpcpp/alarm.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

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

// Something for a poller to complete.
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
  return std::make_unique<Poller>(std::make_unique<grpc::CompletionQueue>(), threads);
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

TEST(PollerTest, ACallbackMayWaitForAnotherEventThoughThereIsOneThread) {
  Event first, second;
  Work later([&] { second.Set(); });
  Work work([&] {
    second.Wait();
    first.Set();
  });
  auto poller = NewPoller(1);
  work.Start(*poller);
  later.Start(*poller);
  first.Wait();
}

// Each waits for the next, so that all are inside at once; twice, so that threads come, go, and
// come again.
TEST(PollerTest, ManyCallbacksMayWaitForEachOther) {
  constexpr size_t kRounds = 2, kCallbacks = 8;
  std::vector<Event> done(kRounds * kCallbacks);
  std::vector<std::unique_ptr<Work>> works;
  auto poller = NewPoller(1);  // ends first
  for (size_t round = 0; round < kRounds; ++round) {
    const size_t first = round * kCallbacks, end = first + kCallbacks;
    for (size_t i = first; i < end; ++i) {
      works.push_back(std::make_unique<Work>([&done, i, end] {
        if (i + 1 < end) done[i + 1].Wait();
        done[i].Set();
      }));
      works.back()->Start(*poller);
    }
    done[first].Wait();
  }
}

}  // namespace
}  // namespace psd::carrier
