#include "bench/process.h"

#include <signal.h>

#include <fstream>
#include <string>

#include "gtest/gtest.h"

namespace psd::bench {
namespace {

constexpr absl::Duration kLong = absl::Seconds(20);

TEST(Process, TalksByLines) {
  const auto cat = Process::Start({"/bin/cat"});
  ASSERT_TRUE(cat.ok()) << cat.status();
  ASSERT_TRUE((*cat)->WriteLine("one\ntwo").ok());
  EXPECT_EQ((*cat)->ReadLine(kLong).value(), "one");
  EXPECT_EQ((*cat)->ReadLine(kLong).value(), "two");
  EXPECT_EQ((*cat)->ReadLine(absl::Milliseconds(10)).status().code(),
            absl::StatusCode::kDeadlineExceeded);
}

TEST(Process, EndsWithItsObject) {
  pid_t pid = 0;
  {
    const auto sleep = Process::Start({"/bin/sleep", "600"});
    ASSERT_TRUE(sleep.ok()) << sleep.status();
    pid = (*sleep)->pid();
    EXPECT_EQ(kill(pid, 0), 0);
  }
  EXPECT_NE(kill(pid, 0), 0);
}

// Waits until the process with that number stands still. A test that waits without end fails.
void WaitUntilStopped(pid_t pid) {
  for (char state = ' '; state != 'T';) {
    std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
    std::string number, name;
    file >> number >> name >> state;
  }
}

TEST(Process, PausesWithItsChildrenAndEndsAllTheSame) {
  const auto shell =
      Process::Start({"/bin/sh", "-c", "/bin/sleep 600 & echo $!; read line; echo $line"});
  ASSERT_TRUE(shell.ok()) << shell.status();
  const std::string child = (*shell)->ReadLine(kLong).value();
  (*shell)->Pause();
  WaitUntilStopped((*shell)->pid());
  WaitUntilStopped(std::stoi(child));
  (*shell)->Resume();
  ASSERT_TRUE((*shell)->WriteLine("again").ok());
  EXPECT_EQ((*shell)->ReadLine(kLong).value(), "again");
  kill(std::stoi(child), SIGKILL);
  (*shell)->Pause();  // the destructor does not wait for its patience to end
}

TEST(Process, EndIsNoticed) {
  const auto process = Process::Start({"/bin/sh", "-c", "echo last"});
  ASSERT_TRUE(process.ok()) << process.status();
  EXPECT_EQ((*process)->ReadLine(kLong).value(), "last");
  EXPECT_EQ((*process)->ReadLine(kLong).status().code(), absl::StatusCode::kUnavailable);
}

TEST(Process, MissingProgramIsAnError) {
  EXPECT_EQ(Process::Start({"/no/such/program"}).status().code(), absl::StatusCode::kNotFound);
}

TEST(Process, CountsCpuTimeAndMemory) {
  const auto process = Process::Start(
      {"/bin/sh", "-c", "i=0; while [ $i -lt 1000 ]; do i=$((i+1)); done; echo; cat"});
  ASSERT_TRUE(process.ok()) << process.status();
  ASSERT_TRUE((*process)->ReadLine(kLong).ok());
  EXPECT_GT((*process)->CpuSeconds().value(), 0);
  EXPECT_GT((*process)->ResidentBytes().value(), size_t{64} << 10);
}

}  // namespace
}  // namespace psd::bench
