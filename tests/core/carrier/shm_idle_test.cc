// Two workers that exchange nothing sleep. The test counts wake-ups, because processor time depends
// on what else the machine does.

#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <string>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/carrier/shm/shm_factory.h"
#include "tests/core/carrier/recorder.h"
#include "tests/core/carrier/shm_listening_test.h"

namespace {
std::atomic<int> waits{0};
}  // namespace

// Replaces the library's function in this program. A poller calls it once when it goes to sleep,
// and again after every few looks at its rings while it is awake.
extern "C" int epoll_wait(int fd, epoll_event* events, int most, int timeout) {
  ++waits;
  return static_cast<int>(syscall(SYS_epoll_pwait, fd, events, most, timeout, nullptr, 0));
}

namespace psd::carrier {
namespace {

// Returns the calls of epoll_wait in a time in which a poller that is awake makes thousands.
int WaitsInAWhile() {
  const int before = waits;
  absl::SleepFor(absl::Milliseconds(300));
  return waits - before;
}

class ShmIdleTest : public ShmListeningTest {
 protected:
  void TearDown() override {
    if (client_ != nullptr) client_->Shutdown();
    ShmListeningTest::TearDown();
    near_->SetLink(nullptr);
  }
  // Opens a link and exchanges messages back to back, after which it is worth looking for more.
  void Exchange() {
    on_message_ = [](Link& link, const Message& message) { EXPECT_TRUE(link.Send(message).ok()); };
    Listen();
    client_ = *NewShmCarrier(options_);
    auto link = ConnectAndWait(*client_, address_, near_);
    ASSERT_TRUE(link.ok()) << link.status();
    near_->CountOnly();
    Message message;
    message.header = "x";
    for (size_t i = 1; i <= 1000; ++i) {
      ASSERT_TRUE((*link)->Send(message).ok());
      ASSERT_TRUE(near_->WaitForMessages(i));
    }
    EXPECT_GT(waits, 100) << "the calls are counted";
  }

  const std::shared_ptr<Recorder> near_ = std::make_shared<Recorder>();
  std::shared_ptr<Carrier> client_;
};

TEST_F(ShmIdleTest, AnIdlePairDoesNotWakeUp) {
  Exchange();
  // On a loaded machine the pollers may not be asleep yet.
  const absl::Time until = absl::Now() + kPatience;
  int quiet = 0;
  while (quiet < 2 && absl::Now() < until) quiet = WaitsInAWhile() == 0 ? quiet + 1 : 0;
  EXPECT_EQ(quiet, 2);
}

TEST_F(ShmIdleTest, AThreadThatStopsHelpingLeavesNobodyAwake) {
  Exchange();
  const std::shared_ptr<Link> link = near_->WaitForLink();
  for (int i = 0; i < 20; ++i) link->HelpUntil([] { return false; });
  const absl::Time until = absl::Now() + kPatience;
  int waited = WaitsInAWhile();
  while (waited > 0 && absl::Now() < until) waited = WaitsInAWhile();
  EXPECT_EQ(waited, 0);
}

TEST_F(ShmIdleTest, SignsOfLifeWakeBothEndsAFewTimesEach) {
  options_.keepalive_time = absl::Milliseconds(50);
  Exchange();
  const absl::Time until = absl::Now() + kPatience;
  // Each end probes at most once in 50 ms. For each probe, two pollers wake up, look once or for a
  // few microseconds, and sleep.
  constexpr int kMost = 2 * 7 * 2 * 20;
  int waited = WaitsInAWhile();
  while (waited > kMost && absl::Now() < until) waited = WaitsInAWhile();
  EXPECT_LE(waited, kMost);
  EXPECT_TRUE(near_->closed().empty());
}

}  // namespace
}  // namespace psd::carrier
