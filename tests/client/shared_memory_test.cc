// Workers of one host use shared memory by default, and say when and why they do not.

#include <sys/resource.h>
#include <unistd.h>

#include <initializer_list>
#include <iostream>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "client/psd.h"
#include "core/base/log.h"
#include "core/base/memory_budget.h"
#include "core/base/mutex.h"
#include "core/rpc/rpc_agent.h"
#include "core/runtime/runtime.h"
#include "core/services/status/status_service.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/psd/v1/status.pb.h"
#include "tests/client/test_world.h"

namespace psd {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// Keeps the texts of the events "link_opened" and "shared_memory_unused".
class CarrierLogger : public Logger {
 public:
  bool Enabled(LogLevel) const override { return true; }
  void Log(LogLevel, absl::string_view event, absl::string_view message,
           std::initializer_list<LogField>) override {
    if (event != "link_opened" && event != "shared_memory_unused") return;
    MutexLock lock(mutex_);
    absl::StrAppend(&said_, event, ": ", message, "\n");
  }
  std::string Said() {
    MutexLock lock(mutex_);
    return said_;
  }

 private:
  Mutex mutex_;
  std::string said_ PSD_GUARDED_BY(mutex_);
};

// One worker dials another.
class SharedMemoryTest : public testing::Test {
 protected:
  void Start(worker::RuntimeOptions dialler, worker::RuntimeOptions dialled) {
    dialler.logger = log_;
    dialled_ = std::make_unique<TestOwner>("b", std::move(dialled));
    dialler_ = std::make_unique<TestOwner>("a", std::move(dialler));
    dialler_->runtime().agent().AddPeer("b", dialled_->address().address);
    Must(dialler_->runtime().agent().Connect("b", {}).Wait());
  }
  // Returns what a worker reports about the only other worker.
  static v1::PeerState Report(TestOwner& worker) {
    const v1::WorkerStatus status = worker.runtime().status().Collect({});
    EXPECT_EQ(status.peers_size(), 1);
    return status.peers_size() == 1 ? status.peers(0) : v1::PeerState();
  }

  const std::shared_ptr<CarrierLogger> log_ = std::make_shared<CarrierLogger>();
  std::unique_ptr<TestOwner> dialled_, dialler_;
};

worker::RuntimeOptions Off() {
  worker::RuntimeOptions options;
  options.shared_memory = false;
  return options;
}

TEST_F(SharedMemoryTest, IsUsedWithoutBeingAskedFor) {
  Start({}, {});
  const std::string link = absl::StrCat("shm unix:@psd/", dialled_->address().address);
  EXPECT_EQ(Report(*dialler_).link(), link);
  EXPECT_EQ(Report(*dialler_).why_not_shared(), "");
  EXPECT_THAT(Report(*dialled_).link(), StartsWith("shm user "));
  EXPECT_EQ(Report(*dialled_).why_not_shared(), "");
  EXPECT_EQ(log_->Said(), absl::StrCat("link_opened: b is connected over ", link, "\n"));
}

TEST_F(SharedMemoryTest, IsUsedByTrainersWithoutBeingAskedFor) {
  TestOwner owner("owner0");
  const auto trainer = StartTrainer("trainer0", {owner.address()});
  EXPECT_THAT(Report(owner).link(), StartsWith("shm "));
}

TEST_F(SharedMemoryTest, ADiallerTurnsItOff) {
  Start(Off(), {});
  EXPECT_THAT(Report(*dialler_).link(), StartsWith("grpc "));
  EXPECT_EQ(Report(*dialler_).why_not_shared(), "shared memory is off at this worker");
  EXPECT_THAT(Report(*dialled_).link(), StartsWith("grpc "));
  EXPECT_EQ(Report(*dialled_).why_not_shared(), "the peer dialled over the network");
  EXPECT_THAT(log_->Said(), HasSubstr(": shared memory is off at this worker"));
}

TEST_F(SharedMemoryTest, ATrainerTurnsItOff) {
  TestOwner owner("owner0");
  WorkerOptions options;
  options.name = "trainer0";
  options.owners = {owner.address()};
  options.shared_memory = false;
  const auto trainer = Must(Worker::Start(std::move(options)));
  EXPECT_THAT(Report(owner).link(), StartsWith("grpc "));
}

TEST_F(SharedMemoryTest, ADialledWorkerTurnsItOff) {
  Start({}, Off());
  EXPECT_THAT(Report(*dialler_).link(), StartsWith("grpc "));
  EXPECT_THAT(Report(*dialler_).why_not_shared(), HasSubstr("offers shared memory at"));
  EXPECT_EQ(Report(*dialled_).why_not_shared(), "shared memory is off at this worker");
}

TEST_F(SharedMemoryTest, ASmallBudgetIsLeftToMessages) {
  worker::RuntimeOptions small;
  small.memory = MemoryBudget::Create(size_t{16} << 20);
  Start({}, small);
  EXPECT_THAT(Report(*dialler_).link(), StartsWith("grpc "));
  EXPECT_THAT(Report(*dialler_).why_not_shared(), HasSubstr("a sixteenth of its memory budget"));
  EXPECT_THAT(log_->Said(), HasSubstr("shared_memory_unused: "));
}

TEST_F(SharedMemoryTest, ALimitOfTheProcessIsNamedInTheStatusAndTheLogAndCallsWork) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto start = [this] {
    const rlimit files = {1'000'000, 1'000'000};
    if (setrlimit(RLIMIT_FSIZE, &files) != 0) _exit(2);
    Start({}, {});  // makes a call
    std::cerr << Report(*dialler_).link() << " because " << Report(*dialler_).why_not_shared()
              << std::endl
              << log_->Said() << std::endl;
    _exit(HasFailure() ? 1 : 0);
  };
  EXPECT_EXIT(start(), testing::ExitedWithCode(0),
              testing::AllOf(testing::ContainsRegex("grpc .* because .*1000000 .RLIMIT_FSIZE"),
                             testing::ContainsRegex("shared_memory_unused: .*RLIMIT_FSIZE")));
}

}  // namespace
}  // namespace psd
