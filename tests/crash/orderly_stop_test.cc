// A daemon is told to stop while trainers step. Every trainer learns whether its last step was
// applied.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/psd.h"
#include "core/base/mutex.h"
#include "core/base/status.h"
#include "gtest/gtest.h"
#include "tests/client/test_world.h"
#include "tests/crash/process_world.h"
#include "tests/crash/training.h"

namespace psd::crash {
namespace {

constexpr int kTrainers = 12;
constexpr int kRounds = 3;
constexpr uint64_t kStepsBeforeTheStop = 60;

// The answers that all trainers together got to their steps.
struct Told {
  std::atomic<int> begun{0};  // trainers that train
  std::atomic<uint64_t> applied{0};
  Mutex mutex;
  uint64_t accepted PSD_GUARDED_BY(mutex) = 0;  // the highest count of steps in an answer
};

void ExpectKnownFate(const absl::Status& error) {
  EXPECT_FALSE(GetDetail(error).value_or(ErrorDetail{}).fate_unknown) << error;
}

// Trains until a call fails.
void TrainUntilStopped(const std::string& name, const OwnerAddress& owner, Told& told) {
  std::unique_ptr<Worker> worker = Must(Worker::Start(TrainerOptions(name, {owner})));
  Training training = Must(Training::Create(*worker, {owner.name}, /*elements=*/64));
  ++told.begun;
  for (;;) {
    absl::Status failed = training.Pull();
    if (failed.ok()) failed = training.Backward();
    if (!failed.ok()) return ExpectKnownFate(failed);
    const StepOutcome outcome = training.Step();
    if (!outcome.status().ok()) return ExpectKnownFate(outcome.status());
    ++told.applied;
    MutexLock lock(told.mutex);
    told.accepted = std::max(told.accepted, outcome.owners[0].steps_accepted);
  }
}

TEST(OrderlyStop, UnderLoadLeavesNoStepInDoubt) {
  for (int round = 0; round < kRounds; ++round) {
    Daemon daemon;
    Told told;
    std::vector<std::thread> trainers;
    for (int i = 0; i < kTrainers; ++i) {
      trainers.emplace_back(TrainUntilStopped, absl::StrCat("trainer", i), daemon.address(),
                            std::ref(told));
    }
    EXPECT_TRUE(
        Eventually([&] { return told.begun == kTrainers && told.applied >= kStepsBeforeTheStop; }));
    EXPECT_EQ(daemon.process().Terminate(), 0);
    for (std::thread& trainer : trainers) trainer.join();
    MutexLock lock(told.mutex);
    EXPECT_EQ(told.applied, told.accepted) << "round " << round;
  }
}

}  // namespace
}  // namespace psd::crash
