// A process that is killed or stopped at any point of an exchange harms only itself: its peer
// notices, and gets all descriptors, mappings and memory back.

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/base/memory_budget.h"
#include "tests/core/carrier/lending/lending_carrier.h"
#include "tests/core/carrier/process_resources.h"
#include "tests/core/carrier/recorder.h"
#include "tests/core/carrier/shm_listening_test.h"

namespace psd::carrier {
namespace {

constexpr char kPeer[] = "tests/core/carrier/shm_mortal_peer";
// This is more than the number of steps in an exchange.
constexpr int kTooManySteps = 2000;

class ShmDeathTest : public ShmListeningTest {
 protected:
  ShmDeathTest() {
    options_.rings = {4096, 8192, 2};
    options_.memory = MemoryBudget::Create(0);
    options_.linger = absl::Milliseconds(10);
    on_message_ = [this](Link& link, const Message& message) {
      if (message.buffers.empty()) return;
      const absl::string_view bytes = message.buffers[0].view();
      if (bytes != std::string(bytes.size(), message.header[0])) ++torn_;
      Message answer = message;
      MoveToSegments(answer);
      link.Send(std::move(answer)).IgnoreError();  // the peer may have ended
    };
  }

  // Starts a process that gets `signal` at its step number `step`.
  pid_t StartPeer(int signal, int step) const {
    const std::string number = absl::StrCat(signal);
    const std::string last = absl::StrCat(step);
    const pid_t child = fork();
    if (child != 0) return child;
    execl(kPeer, kPeer, address_.c_str(), number.c_str(), last.c_str(), nullptr);
    _exit(127);
  }
  static int AwaitChange(pid_t child) {
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, WUNTRACED), child);
    return status;
  }
  // Waits until all links of the peer have ended and nothing is left of them.
  void ExpectNothingLeft(const ProcessResources& before) {
    ASSERT_EQ(AwaitLinksEnded(before), before);
    EXPECT_EQ(torn_, 0) << "messages came in part";
    EXPECT_EQ(options_.memory->transit()->used_bytes(), 0u);
    EXPECT_EQ(options_.memory->essential()->used_bytes(), 0u);
  }
  ProcessResources AwaitLinksEnded(const ProcessResources& before) {
    // A link may be accepted after its peer has ended, because the peer's introduction is in the
    // socket.
    return AwaitResources(before, [this] {
      for (const auto& recorder : TakeAccepted(/*first=*/0)) {
        EXPECT_TRUE(recorder->WaitForClosed());
        recorder->SetLink(nullptr);
      }
    });
  }

  std::atomic<int> torn_{0};
};

TEST_F(ShmDeathTest, AProcessThatIsKilledAtAnyStepLeavesNothingBehind) {
  Listen();
  const ProcessResources before = CountResources();
  int step = 0;
  int status = -1;
  do {
    // The later steps are much alike, and a slower machine has more of them.
    step += step < 60 ? 1 : 7;
    ASSERT_LT(step, kTooManySteps);
    SCOPED_TRACE(step);
    status = AwaitChange(StartPeer(SIGKILL, step));
    ExpectNothingLeft(before);
    ASSERT_FALSE(HasFatalFailure());
    ASSERT_TRUE(WIFEXITED(status) ? WEXITSTATUS(status) == 0 : WTERMSIG(status) == SIGKILL)
        << status;
  } while (!WIFEXITED(status));
  EXPECT_GT(step, 40);
  ExpectServes();
}

TEST_F(ShmDeathTest, AProcessThatIsStoppedAtAnyStepIsGivenUp) {
  options_.keepalive_time = absl::Milliseconds(50);
  options_.keepalive_timeout = absl::Milliseconds(50);
  options_.handshake_timeout = absl::Milliseconds(50);
  Listen();
  const ProcessResources before = CountResources();
  // On a loaded machine, a process that is not stopped may be given up, too. Its steps count.
  int stopped = 0;
  for (int step = 1; step < kTooManySteps; step += step < 60 ? 3 : 21) {
    SCOPED_TRACE(step);
    const pid_t child = StartPeer(SIGSTOP, step);
    int status = AwaitChange(child);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) break;
    stopped += WIFSTOPPED(status) ? 1 : 0;
    ExpectNothingLeft(before);
    ASSERT_FALSE(HasFatalFailure());
    if (!WIFSTOPPED(status)) continue;
    // When the process goes on, it finds its link ended, or it ends before it has noticed.
    ASSERT_EQ(kill(child, SIGCONT), 0);
    status = AwaitChange(child);
    EXPECT_TRUE(WIFEXITED(status)) << status;
  }
  EXPECT_GT(stopped, 5);
}

}  // namespace
}  // namespace psd::carrier
