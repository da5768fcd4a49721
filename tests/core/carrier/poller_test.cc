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

// Each waits for the next, so that all are inside at once; twice, so that threads come and go.
TEST(PollerTest, ManyCallbacksMayWaitForEachOther) {
  constexpr size_t kCallbacks = 8;
  auto poller = NewPoller(1);
  for (int round = 0; round < 2; ++round) {
    std::vector<Event> done(kCallbacks + 1);
    std::vector<std::unique_ptr<Work>> works;
    for (size_t i = 0; i < kCallbacks; ++i) {
      works.push_back(std::make_unique<Work>([&done, i] {
        if (i + 1 < kCallbacks) done[i + 1].Wait();
        done[i].Set();
      }));
      works.back()->Start(*poller);
    }
    done[0].Wait();
    poller = NewPoller(1);  // the old one stops, with all that it had
  }
}

}  // namespace
}  // namespace psd::carrier
