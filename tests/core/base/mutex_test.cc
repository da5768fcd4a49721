#include "core/base/mutex.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace psd {
namespace {

struct Box {
  Mutex mutex;
  CondVar changed;
  int value PSD_GUARDED_BY(mutex) = 0;
};

TEST(MutexTest, ExcludesEachOther) {
  Box box;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&box] {
      for (int j = 0; j < 5000; ++j) {
        MutexLock lock(box.mutex);
        ++box.value;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  MutexLock lock(box.mutex);
  EXPECT_EQ(box.value, 20'000);
}

TEST(CondVarTest, HandsOverBothWays) {
  Box box;
  std::thread other([&box] {
    for (int i = 0; i < 1000; ++i) {
      MutexLock lock(box.mutex);
      while (box.value % 2 == 0) box.changed.Wait(box.mutex);
      ++box.value;
      box.changed.NotifyAll();
    }
  });
  for (int i = 0; i < 1000; ++i) {
    MutexLock lock(box.mutex);
    while (box.value % 2 == 1) box.changed.Wait(box.mutex);
    ++box.value;
    box.changed.NotifyOne();
  }
  other.join();
  MutexLock lock(box.mutex);
  EXPECT_EQ(box.value, 2000);
}

TEST(CondVarTest, WaitForTimesOut) {
  Box box;
  MutexLock lock(box.mutex);
  // No thread notifies, so every wait times out. A spurious wake-up may come first.
  while (box.changed.WaitFor(box.mutex, absl::Milliseconds(1))) {
  }
  while (box.changed.WaitFor(box.mutex, absl::ZeroDuration())) {
  }
  while (box.changed.WaitFor(box.mutex, -absl::InfiniteDuration())) {
  }
}

TEST(CondVarTest, WaitForTakesAnInfiniteTimeout) {
  Box box;
  std::thread other([&box] {
    MutexLock lock(box.mutex);
    box.value = 1;
    box.changed.NotifyAll();
  });
  {
    MutexLock lock(box.mutex);
    while (box.value == 0) EXPECT_TRUE(box.changed.WaitFor(box.mutex, absl::InfiniteDuration()));
  }
  other.join();
}

}  // namespace
}  // namespace psd
