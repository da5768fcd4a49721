// The thread that watches sockets and rings, and the turns that threads take at a link.

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <random>
#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/base/mutex.h"
#include "core/base/unique_fd.h"
#include "core/carrier/shm/poller.h"
#include "core/carrier/shm/turn_taking.h"

namespace psd::carrier {
namespace {

UniqueFd NewEvent() {
  return UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
}
void Ring(const UniqueFd& event) {
  const uint64_t one = 1;
  EXPECT_EQ(write(event.get(), &one, sizeof(one)), static_cast<ssize_t>(sizeof(one)));
}

// A ring in which there is always something. It rings `bell` at its first look, and counts how
// often it is looked at until the bell is heard.
class Busy : public Watched {
 public:
  explicit Busy(const UniqueFd& bell) : bell_(bell) {}
  bool OnWake(bool) override { return true; }
  Look OnLook(bool) override {
    if (heard_) return Look::kAsleep;
    if (++looks_ == 1) Ring(bell_);
    return Look::kFound;
  }
  int Hear() {
    heard_ = true;
    return looks_;
  }

 private:
  const UniqueFd& bell_;
  bool heard_ = false;
  int looks_ = 0;
};

class Bell : public Watched {
 public:
  explicit Bell(std::shared_ptr<Busy> busy) : busy_(std::move(busy)) {}
  bool OnWake(bool) override {
    MutexLock lock(mutex_);
    if (looks_ == 0) looks_ = busy_->Hear();
    changed_.NotifyAll();
    return false;
  }
  Look OnLook(bool) override { return Look::kAsleep; }
  int AwaitLooks() {
    MutexLock lock(mutex_);
    while (looks_ == 0) changed_.Wait(mutex_);
    return looks_;
  }

 private:
  const std::shared_ptr<Busy> busy_;  // shared with the poller
  Mutex mutex_;
  CondVar changed_;
  int looks_ PSD_GUARDED_BY(mutex_) = 0;
};

// Something with notes, which are heard by its poller's thread.
class Notes : public Watched {
 public:
  bool OnWake(bool) override { return false; }
  Look OnLook(bool) override { return Look::kAsleep; }
  bool IsCalled() const override { return left_.load() > 0; }
  void OnCall() override {
    MutexLock lock(mutex_);
    heard_ += left_.exchange(0);
    changed_.NotifyAll();
  }

  void Leave(PollerBell& bell) {
    left_.fetch_add(1);
    bell.Ring();
  }
  void AwaitHeard(int notes) {
    MutexLock lock(mutex_);
    while (heard_ < notes) changed_.Wait(mutex_);
  }

 private:
  std::atomic<int> left_{0};
  Mutex mutex_;
  CondVar changed_;
  int heard_ PSD_GUARDED_BY(mutex_) = 0;
};

TEST(ShmPollerTest, ABellIsHeardWhetherThePollerSleepsOrWakesSoon) {
  const UniqueFd socket = NewEvent();
  auto poller = ShmPoller::Create("the test");
  ASSERT_TRUE(poller.ok()) << poller.status();
  const auto notes = std::make_shared<Notes>();
  ASSERT_TRUE((*poller)->Add(socket.get(), notes).ok());
  // The pauses end before, while and after the poller falls asleep, which it does after 2 ms.
  std::minstd_rand random(1);
  for (int note = 1; note <= 300; ++note) {
    notes->Leave(*(*poller)->bell());
    notes->AwaitHeard(note);
    absl::SleepFor(absl::Microseconds(random() % 4500));
  }
}

TEST(ShmPollerTest, ABusyRingDoesNotKeepABellWaiting) {
  const UniqueFd bell_fd = NewEvent();
  const UniqueFd busy_fd = NewEvent();
  auto poller = ShmPoller::Create("the test");
  ASSERT_TRUE(poller.ok()) << poller.status();
  const auto busy = std::make_shared<Busy>(bell_fd);
  const auto bell = std::make_shared<Bell>(busy);
  ASSERT_TRUE((*poller)->Add(bell_fd.get(), bell).ok());
  ASSERT_TRUE((*poller)->Add(busy_fd.get(), busy).ok());
  (*poller)->Kick(busy);
  EXPECT_LE(bell->AwaitLooks(), 8);
  (*poller)->Stop();
}

TEST(ShmPollerTest, WhatIsAddedOrKickedAfterTheEndIsNotKept) {
  const UniqueFd fd = NewEvent();
  auto poller = ShmPoller::Create("the test");
  ASSERT_TRUE(poller.ok()) << poller.status();
  (*poller)->Stop();
  auto busy = std::make_shared<Busy>(fd);
  const std::weak_ptr<Busy> weak = busy;
  EXPECT_EQ((*poller)->Add(fd.get(), busy).code(), absl::StatusCode::kUnavailable);
  (*poller)->Kick(std::move(busy));
  EXPECT_TRUE(weak.expired());
}

TEST(TurnTakingTest, WhoFindsATurnTakenMayLeaveANote) {
  TurnTaking turn;
  ASSERT_TRUE(turn.Enter());
  EXPECT_FALSE(turn.Enter());
  EXPECT_FALSE(turn.Leave()) << "the work is done once more";
  EXPECT_TRUE(turn.Leave());
}

TEST(TurnTakingTest, WhoOnlyTriesLeavesNoNote) {
  TurnTaking turn;
  ASSERT_TRUE(turn.TryEnter());
  EXPECT_FALSE(turn.TryEnter());
  EXPECT_TRUE(turn.Leave());
  ASSERT_TRUE(turn.Enter());
  EXPECT_FALSE(turn.TryEnter());
  EXPECT_TRUE(turn.Leave());
}

}  // namespace
}  // namespace psd::carrier
