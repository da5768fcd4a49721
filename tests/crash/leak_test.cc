// Trainers come and go, and the owner releases everything that they held.

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "client/psd.h"
#include "gtest/gtest.h"
#include "tests/client/test_world.h"
#include "tests/crash/process_world.h"
#include "tests/crash/training.h"

namespace psd::crash {
namespace {

constexpr int64_t kElements = 100'000;

TEST(LeakTest, TwentyTrainersAndADroppedModelLeaveNothing) {
  Daemon owner({"owner0", "127.0.0.1:0", "", /*lease=*/absl::Seconds(2)});
  auto observer = Must(Worker::Start(TrainerOptions("observer", {owner.address()})));
  auto held = [&] { return HoldingsOf(Must(StatusOf(*observer, "owner0"))); };
  const Holdings initially = held();
  for (int i = 0; i < 20; ++i) {
    auto trainer =
        Must(Worker::Start(TrainerOptions(absl::StrCat("trainer", i), {owner.address()})));
    Training training = Must(Training::Create(*trainer, {"owner0"}, kElements));
    ASSERT_TRUE(training.Pull().ok());
    ASSERT_TRUE(training.Backward().ok());
    ASSERT_TRUE(training.Step().status().ok());
    RRef anonymous = Must(trainer->Remote("owner0", Function::Operator("neg", 1),
                                          {Variable(*Tensor::Full({kElements}, DType::kF32, 7))}));
    // Some trainers shut down in order and others do not. Some of each kind first wait for their
    // last result.
    if (i % 3 == 0) {
      EXPECT_TRUE(trainer->ToHere({anonymous}).ok());
    }
    if (i % 2 == 0) {
      EXPECT_TRUE(trainer->Shutdown().ok());
    }
  }
  EXPECT_GT(held().used_bytes, initially.used_bytes);
  EXPECT_TRUE(observer->Drop("owner0", "w").ok());
  EXPECT_TRUE(observer->Drop("owner0", kOptimizer).ok());
  EXPECT_TRUE(Eventually([&] { return held() == initially; }))
      << held() << "\ninitially " << initially;
}

}  // namespace
}  // namespace psd::crash
