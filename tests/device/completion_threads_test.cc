#include "core/base/completion_threads.h"

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "core/base/buffer.h"
#include "core/base/device.h"
#include "core/base/future.h"
#include "core/base/memory_budget.h"
#include "core/base/memory_scope.h"
#include "core/base/stream.h"
#include "core/device/emulated/emulated_device.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/device/test_device.h"

namespace psd {
namespace {

using ::testing::ElementsAre;

// An event that passes when the test says so.
class HeldEvent : public Event {
 public:
  void Pass(absl::Status result = absl::OkStatus()) {
    result_ = std::move(result);
    passed_.Set(true);
  }
  bool passed() const override { return passed_.future().IsReady(); }
  absl::Status Wait() override {
    static_cast<void>(passed_.future().Wait());
    return result_;
  }
  void OnPassed(absl::AnyInvocable<void(absl::Status) &&> then) override {
    std::move(then)(Wait());
  }

 private:
  absl::Status result_;
  Promise<bool> passed_;
};

class CompletionThreadsTest : public ::testing::Test {
 protected:
  const std::shared_ptr<EmulatedDevice> first_ = testing::NewTestDevice(0);
  const std::shared_ptr<EmulatedDevice> second_ = testing::NewTestDevice(0);
  const std::vector<Device*> devices_ = {first_.get(), second_.get()};
  const std::shared_ptr<HeldEvent> held_ = std::make_shared<HeldEvent>();
  const std::shared_ptr<HeldEvent> other_ = std::make_shared<HeldEvent>();
};

TEST_F(CompletionThreadsTest, ADeviceThatDoesNotGetOnHoldsUpOnlyItsOwnWork) {
  CompletionThreads threads(devices_);
  ASSERT_TRUE(threads.started().ok()) << threads.started();
  bool held_passed = false;
  Promise<bool> other_passed;
  threads.OnPassed({first_.get(), held_}, [&](absl::Status) { held_passed = true; });
  threads.OnPassed({second_.get(), other_}, [&](absl::Status) { other_passed.Set(true); });
  other_->Pass();
  EXPECT_TRUE(other_passed.future().Wait().ok());
  held_->Pass();
  threads.Shutdown();
  EXPECT_TRUE(held_passed);
}

TEST_F(CompletionThreadsTest, WorkOfADeviceIsCompletedInOrderWithItsResult) {
  CompletionThreads threads(devices_);
  const absl::Status lost = absl::UnavailableError("emu:0 is lost");
  std::vector<absl::Status> results;
  const auto add = [&](absl::Status result) { results.push_back(std::move(result)); };
  threads.OnPassed({first_.get(), held_}, add);
  threads.OnPassed({first_.get(), other_}, add);
  other_->Pass();
  held_->Pass(lost);
  threads.Shutdown();
  EXPECT_THAT(results, ElementsAre(lost, absl::OkStatus()));
}

TEST_F(CompletionThreadsTest, ShutdownAlsoWaitsForWhatCompletionsAdd) {
  CompletionThreads threads(devices_);
  bool called = false;
  threads.OnPassed({first_.get(), held_}, [&](absl::Status) {
    threads.OnPassed({second_.get(), other_}, [&](absl::Status) { called = true; });
  });
  std::thread device([this] {
    held_->Pass();
    other_->Pass();
  });
  threads.Shutdown();
  EXPECT_TRUE(called);
  device.join();
}

// One of the two calls may find that the other one has ended the threads, or is about to.
TEST_F(CompletionThreadsTest, TwoThreadsMayShutDownAtOnceAndBothWait) {
  constexpr int kRounds = 50;
  for (int i = 0; i < kRounds; ++i) {
    CompletionThreads threads(devices_);
    const auto held = std::make_shared<HeldEvent>();
    std::atomic<bool> called = false;
    std::atomic<int> calling = 0;
    threads.OnPassed({first_.get(), held}, [&](absl::Status) { called = true; });
    const auto shut_down = [&] {
      ++calling;
      threads.Shutdown();
      EXPECT_TRUE(called);
    };
    std::thread first(shut_down);
    std::thread second(shut_down);
    while (calling < 2) std::this_thread::yield();
    held->Pass();
    first.join();
    second.join();
  }
}

// When Shutdown returns, all completions have been called, also those of a device that was late.
TEST_F(CompletionThreadsTest, ACompletionMayShutDownAndEndTheThreads) {
  auto threads = std::make_unique<CompletionThreads>(devices_);
  std::vector<std::string> called;
  const auto ended = std::make_shared<Promise<bool>>();  // shared with the thread, which goes on
  threads->OnPassed({first_.get(), held_}, [&, ended](absl::Status) {
    threads->OnPassed({first_.get(), held_}, [&](absl::Status) {
      called.push_back("added");
      other_->Pass();
    });
    threads->Shutdown();
    called.push_back("shut down");
    threads.reset();
    ended->Set(true);
  });
  threads->OnPassed({first_.get(), held_}, [&](absl::Status) { called.push_back("left"); });
  threads->OnPassed({second_.get(), other_}, [&](absl::Status) { called.push_back("other"); });
  held_->Pass();
  ASSERT_TRUE(ended->future().Wait().ok());
  EXPECT_THAT(called, ElementsAre("left", "added", "other", "shut down"));
}

TEST_F(CompletionThreadsTest, CompletionsAreChargedToTheAccount) {
  const auto account = MemoryAccount::Create(0, NewHeapAllocator());
  CompletionThreads threads(devices_, account);
  MemoryAccount* there = nullptr;
  threads.OnPassed({first_.get(), held_}, [&](absl::Status) { there = MemoryScope::Current(); });
  held_->Pass();
  threads.Shutdown();
  EXPECT_EQ(there, account.get());
}

TEST_F(CompletionThreadsTest, AfterShutdownAndForOtherDevicesTheCallerWaits) {
  held_->Pass();
  const std::thread::id here = std::this_thread::get_id();
  std::vector<std::thread::id> called_by;
  const auto note = [&](absl::Status) { called_by.push_back(std::this_thread::get_id()); };
  CompletionThreads threads({devices_.data(), 1});
  threads.OnPassed({second_.get(), held_}, note);
  threads.Shutdown();
  threads.OnPassed({first_.get(), held_}, note);
  EXPECT_THAT(called_by, ElementsAre(here, here));
}

}  // namespace
}  // namespace psd
