// The system refuses a worker one of its threads. For each thread, the start fails with an error
// and no thread stays behind.

#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <cstring>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "client/psd.h"
#include "core/base/log.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/test_world.h"

namespace {

std::atomic<int> still_given{INT_MAX};  // threads that psd may still start
std::atomic<int> alive{0};              // running threads of psd

struct Start {
  void* (*run)(void*);
  void* argument;
};

void* RunCounted(void* start_pointer) {
  const std::unique_ptr<Start> start(static_cast<Start*>(start_pointer));
  void* result = start->run(start->argument);
  --alive;
  return result;
}

// Returns whether this thread is started by std::thread. This holds for all threads of psd, and for
// none of gRPC's.
bool IsOfPsd(void* (*run)(void*)) {
  Dl_info place = {};
  return dladdr(reinterpret_cast<void*>(run), &place) != 0 &&
         std::strstr(place.dli_fname, "libstdc++") != nullptr;
}

}  // namespace

// Replaces the system's function, and calls it unless the thread is to be refused.
extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                              void* (*run)(void*), void* argument) noexcept {
  using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static const auto create = reinterpret_cast<Create>(dlsym(RTLD_NEXT, "pthread_create"));
  if (!IsOfPsd(run)) return create(thread, attributes, run, argument);
  if (still_given.fetch_sub(1) <= 0) return EAGAIN;
  auto start = std::make_unique<Start>(Start{run, argument});
  ++alive;
  const int error = create(thread, attributes, &RunCounted, start.get());
  if (error == 0) {
    start.release();  // the thread owns it
  } else {
    --alive;
  }
  return error;
}

namespace psd {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

WorkerOptions Options() {
  WorkerOptions options;
  options.name = "trainer0";
  options.logger = NewNullLogger();
  return options;
}

// Tries starts with 0, 1, 2, … threads until one succeeds. Returns how many starts failed.
int StartWithEverMoreThreads(const WorkerOptions& options) {
  const int before = alive;
  for (int threads = 0;; ++threads) {
    still_given = threads;
    auto worker = Worker::Start(options);
    still_given = INT_MAX;
    if (worker.ok()) return threads;
    EXPECT_EQ(worker.status().code(), absl::StatusCode::kResourceExhausted) << worker.status();
    EXPECT_THAT(std::string(worker.status().message()),
                AllOf(HasSubstr("the system refuses"), HasSubstr("thread"),
                      HasSubstr("RLIMIT_NPROC"), HasSubstr("pids.max"), HasSubstr("RLIMIT_AS")))
        << threads;
    EXPECT_EQ(alive, before) << "threads stay behind after " << threads;
    if (testing::Test::HasFailure()) return threads;
  }
}

TEST(RefusedThreads, EachFailsTheStartOfATrainer) {
  // The threads are two for functions, two for steps, two for callbacks, two for timers, one for
  // the network, and those that gRPC will start, for which there must be room.
  EXPECT_GE(StartWithEverMoreThreads(Options()), 9 + 7);
  EXPECT_EQ(alive, 0);
}

TEST(RefusedThreads, EachFailsTheStartOfAWorkerThatListens) {
  WorkerOptions options = Options();
  options.listen = "127.0.0.1:0";
  // One more thread accepts connections.
  EXPECT_GE(StartWithEverMoreThreads(options), 10);
  EXPECT_EQ(alive, 0);
}

TEST(RefusedThreads, EachFailsTheStartOfATrainerThatAttaches) {
  TestOwner owner("owner0");
  WorkerOptions options = Options();
  options.owners = {owner.address()};
  EXPECT_GE(StartWithEverMoreThreads(options), 9);
  EXPECT_TRUE(Worker::Start(options).ok()) << "the owner serves on";
}

}  // namespace
}  // namespace psd
