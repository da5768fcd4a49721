// A stop that does not end by itself is cut off, with exit code 6.

#include "server/daemon/stop_bound.h"

#include <signal.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "client/psd.h"
#include "gtest/gtest.h"
#include "server/daemon/daemon.h"
#include "tests/client/test_world.h"

namespace psd::server {
namespace {

using ::testing::ExitedWithCode;

class StopBoundDeathTest : public ::testing::Test {
 protected:
  StopBoundDeathTest() { ::testing::FLAGS_gtest_death_test_style = "threadsafe"; }
};

TEST_F(StopBoundDeathTest, AStopThatTakesLongerIsCutOffAndSaysSo) {
  const auto hang = [] {
    EndWhenStopTakesLonger(absl::Milliseconds(20), kExitStopHung);
    while (true) pause();
  };
  EXPECT_EXIT(hang(), ExitedWithCode(kExitStopHung),
              "the stop was cut off because it took longer than drain_timeout and 10 seconds "
              "\\(20ms\\).*does not return");
}

TEST_F(StopBoundDeathTest, AStopThatEndsInTimeIsLeftAlone) {
  const auto stop = [] {
    EndWhenStopTakesLonger(absl::Hours(1), kExitStopHung);
    std::_Exit(kExitOk);
  };
  EXPECT_EXIT(stop(), ExitedWithCode(kExitOk), "^$");
}

// Runs a daemon in which a trainer calls a function that tells the daemon to stop and never
// returns. Returns the daemon's exit code.
int RunDaemonWithEndlessFunction() {
  // The client's threads take no signal that is for the daemon.
  sigset_t stop;
  sigemptyset(&stop);
  sigaddset(&stop, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &stop, nullptr);
  std::array<int, 2> ready = {};
  if (pipe(ready.data()) != 0) return -1;
  std::thread([read_end = ready[0]] {
    std::string address;
    for (char next = 0; read(read_end, &next, 1) == 1 && next != '\n';) address += next;
    StartTrainer("trainer0", {{"owner0", address}})
        ->RpcSync("owner0", Function::Registered("endless"), {})
        .IgnoreError();
  }).detach();
  ServerExtensions extensions;
  EXPECT_TRUE(extensions.functions
                  .Register("endless",
                            [](const services::FunctionCall&, const Values&) {
                              kill(getpid(), SIGTERM);
                              while (true) pause();
                              return absl::StatusOr<Values>(Values{});
                            })
                  .ok());
  std::vector<std::string> words = {"psd",
                                    "--name",
                                    "owner0",
                                    "--insecure",
                                    "--listen",
                                    "127.0.0.1:0",
                                    "--ready_fd",
                                    absl::StrCat(ready[1]),
                                    "--drain_timeout",
                                    "0s"};
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  return RunDaemon(static_cast<int>(arguments.size()), arguments.data(), std::move(extensions));
}

TEST_F(StopBoundDeathTest, ADaemonWithAFunctionThatNeverReturnsEndsAfterTheBound) {
  EXPECT_EXIT(std::_Exit(RunDaemonWithEndlessFunction()), ExitedWithCode(kExitStopHung),
              "longer than drain_timeout and 10 seconds \\(10s\\)");
}

}  // namespace
}  // namespace psd::server
