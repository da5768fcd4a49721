// Deaths among trainers that push for each other, and pushers that follow one another.

#include <cmath>
#include <cstdint>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/collectives/group.h"
#include "client/ddp/hierarchical_push.h"
#include "client/psd.h"
#include "core/base/status.h"
#include "core/runtime/runtime.h"
#include "core/services/status/status_service.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/collectives/group_world.h"
#include "tests/client/ddp/hierarchical_world.h"
#include "tests/client/test_world.h"

namespace psd {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

std::string Culprit(const absl::Status& status) {
  const auto detail = GetDetail(status);
  return detail.has_value() ? detail->worker : "";
}
bool FateUnknown(const absl::Status& status) {
  const auto detail = GetDetail(status);
  return detail.has_value() && detail->fate_unknown;
}

class DeadPusherTest : public HierarchicalPushTest, public ::testing::WithParamInterface<bool> {};

// The seats of the dead pusher are empty until its successor steps, so a step of the other host is
// in the same round only if it comes later than the successor's.
TEST_P(DeadPusherTest, DDP_32_APusherThatDiesInARoundIsReplacedAndItsStepIsNotApplied) {
  constexpr int kTrainers = 4;
  const bool others_go_on_first = GetParam();
  Start(kTrainers);
  Sgd sgd;
  sgd.lr = 1;
  std::vector<Handles> all(kTrainers);
  InParallel(kTrainers, [&](int i) { all[i] = Make(i, kTrainers, {"w"}, sgd); });
  const auto step = [&](int i, double value) {
    const Context context =
        WithGradients(i, *all[i].push, {Must(Tensor::Full({100, 100}, DType::kF32, value))});
    return all[i].push->Step(context);
  };
  const std::vector<float> initial = Read("w");
  InParallel(kTrainers, [&](int i) { EXPECT_TRUE(step(i, 1).ok()); });  // all seats are taken
  InParallel(3, [&](int i) {
    if (i < 2) {
      const absl::Status failed = step(i, 1000);
      EXPECT_FALSE(failed.ok());
      if (i == 0) return;
      EXPECT_EQ(Culprit(failed), "t0") << failed;
      EXPECT_TRUE(FateUnknown(failed)) << failed;
    } else {
      AwaitWaiting(1);
      Kill(0);
    }
  });
  groups_[1] = Must(groups_[1]->Rebuild(worker(1)));
  EXPECT_EQ(groups_[1]->size(), 1);
  Recreate(1, all[1], {"w"});
  AwaitWaiting(0);  // owner1 has noticed the death
  if (others_go_on_first) {
    InParallel(kTrainers, [&](int i) {
      if (i < 2) return;
      const absl::Status stepped = step(i, 5);
      EXPECT_TRUE(stepped.ok()) << stepped;
    });
  }
  InParallel(kTrainers, [&](int i) {
    if (i == 0) return;
    if (i == 2) AwaitWaiting(1);  // t1 has a seat again
    const absl::Status stepped = step(i, 2);
    EXPECT_TRUE(stepped.ok()) << stepped;
  });
  std::vector<float> change = Read("w");
  for (size_t i = 0; i < change.size(); ++i) change[i] -= initial[i];
  const float round_of_others = others_go_on_first ? -2 * 5 : 0;
  EXPECT_THAT(change, Each(::testing::FloatNear(-4 + round_of_others - 3 * 2, 1e-4)));
}

INSTANTIATE_TEST_SUITE_P(SuccessorOrOthersFirst, DeadPusherTest, ::testing::Bool());

// The owner has applied the step, and its answer does not reach the pusher.
TEST_F(HierarchicalPushTest, DDP_32_AStepWhosePusherDiedBeforeItToldTheOthersCountsOnce) {
  Start(2);
  Sgd sgd;
  sgd.lr = 1;
  std::vector<Handles> all(2);
  InParallel(2, [&](int i) { all[i] = Make(i, 2, {"w"}, sgd); });
  const std::vector<float> initial = Read("w");
  std::vector<Context> contexts;
  for (int i : {0, 1}) {
    contexts.push_back(
        WithGradients(i, *all[i].push, {Must(Tensor::Full({100, 100}, DType::kF32, 1))}));
  }
  traffic_.mute_steps = true;
  InParallel(3, [&](int i) {
    if (i < 2) {
      const absl::Status failed = all[i].push->Step(contexts[i]);
      EXPECT_FALSE(failed.ok());
      if (i == 0) return;
      EXPECT_EQ(Culprit(failed), "t0") << failed;
      EXPECT_TRUE(FateUnknown(failed)) << failed;
    } else {
      const auto applied = [&] {
        const auto status = owner1_.runtime().status().Collect({});
        return status.optimizers_size() > 0 && status.optimizers(0).steps() == 1;
      };
      while (!applied()) std::this_thread::yield();
      Kill(0);
      traffic_.mute = false;
    }
  });
  groups_[1] = Must(groups_[1]->Rebuild(worker(1)));
  Recreate(1, all[1], {"w"});
  EXPECT_EQ(all[1].push->Step(contexts[1]).code(), absl::StatusCode::kFailedPrecondition)
      << "its gradients are in the step of the trainer that died";
  const absl::Status stepped = all[1].push->Step(
      WithGradients(1, *all[1].push, {Must(Tensor::Full({100, 100}, DType::kF32, 10))}));
  EXPECT_TRUE(stepped.ok()) << stepped;
  std::vector<float> change = Read("w");
  for (size_t i = 0; i < change.size(); ++i) change[i] -= initial[i];
  EXPECT_THAT(change, Each(::testing::FloatNear(-2 - 10, 1e-4)));
}

TEST_F(HierarchicalPushTest, DDP_32_ARankThatDiedIsNamedAndThePusherGoesOnForTheOthers) {
  Start(2);
  Sgd sgd;
  sgd.lr = 1;
  std::vector<Handles> all(2);
  InParallel(2, [&](int i) { all[i] = Make(i, 2, {"b"}, sgd); });
  const auto step = [&](int i, double value) {
    return all[i].push->Step(
        WithGradients(i, *all[i].push, {Must(Tensor::Full({5}, DType::kF32, value))}));
  };
  const std::vector<float> initial = psd::Read(worker(0), Parameters(0, {"b"})[0]);
  InParallel(2, [&](int i) { EXPECT_TRUE(step(i, 1).ok()); });
  Kill(1);
  const absl::Status failed = step(0, 1000);
  EXPECT_EQ(Culprit(failed), "t1") << failed;
  EXPECT_FALSE(FateUnknown(failed)) << failed;
  groups_[0] = Must(groups_[0]->Rebuild(worker(0)));
  Recreate(0, all[0], {"b"});
  const absl::Status stepped = step(0, 10);
  EXPECT_TRUE(stepped.ok()) << stepped;
  std::vector<float> change = psd::Read(worker(0), Parameters(0, {"b"})[0]);
  for (size_t i = 0; i < change.size(); ++i) change[i] -= initial[i];
  EXPECT_THAT(change, Each(::testing::FloatNear(-2 - 10, 1e-4)));
}

// Rank 1 gives up while the pusher's step waits for the other host.
TEST_F(HierarchicalPushTest, DDP_32_APusherThatCannotTellItsStepSaysThatItsFateIsUnknown) {
  constexpr int kTrainers = 4;
  Start(kTrainers);
  Sgd sgd;
  sgd.lr = 1;
  std::vector<Handles> all(kTrainers);
  InParallel(kTrainers, [&](int i) { all[i] = Make(i, kTrainers, {"w"}, sgd); });
  std::vector<Context> contexts;
  for (int i = 0; i < kTrainers; ++i) {
    contexts.push_back(
        WithGradients(i, *all[i].push, {Must(Tensor::Full({100, 100}, DType::kF32, 1))}));
  }
  const std::vector<float> initial = Read("w");
  InParallel(kTrainers, [&](int i) {
    if (i == 2) {
      AwaitWaiting(1);
      groups_[1]->Fail(absl::UnavailableError("rank 1 gives up")).IgnoreError();
      while (groups_[0]->status().ok()) std::this_thread::yield();
    }
    const absl::Status stepped = all[i].push->Step(contexts[i]);
    EXPECT_EQ(stepped.ok(), i >= 2) << stepped;
    if (i >= 2) return;
    EXPECT_TRUE(FateUnknown(stepped)) << stepped;
    EXPECT_THAT(std::string(stepped.message()),
                HasSubstr(i == 0 ? "the step was applied" : "the step may have been applied"));
  });
  std::vector<float> change = Read("w");
  for (size_t i = 0; i < change.size(); ++i) change[i] -= initial[i];
  EXPECT_THAT(change, Each(::testing::FloatNear(-4, 1e-4)));
}

// The owner applies the step, and is silent until the pusher has given up.
TEST_F(HierarchicalPushTest, DDP_32_AnOwnerThatDoesNotAnswerIsNamedOnAllRanksAndTheGroupGoesOn) {
  Start(2);
  Sgd sgd;
  sgd.lr = 1;
  std::vector<Handles> all(2);
  InParallel(2, [&](int i) { all[i] = Make(i, 2, {"w"}, sgd); });
  const auto step = [&](int i, double value, const StepOptions& options = {}) {
    const Tensor gradient = Must(Tensor::Full({100, 100}, DType::kF32, value));
    return all[i].push->Step(WithGradients(i, *all[i].push, {gradient}), options);
  };
  const std::vector<float> initial = Read("w");
  traffic_.mute_steps = true;
  InParallel(2, [&](int i) {
    StepOptions hasty;
    hasty.timeout = absl::Seconds(6);  // in which the step reaches the owner
    const absl::Status failed = step(i, 1, hasty);
    EXPECT_EQ(Culprit(failed), "owner1") << failed;
    EXPECT_TRUE(FateUnknown(failed)) << failed;
    EXPECT_TRUE(groups_[i]->Barrier().ok());
  });
  traffic_.mute = false;
  InParallel(2, [&](int i) {
    const absl::Status stepped = step(i, 10);
    EXPECT_TRUE(stepped.ok()) << stepped;
  });
  std::vector<float> change = Read("w");
  for (size_t i = 0; i < change.size(); ++i) change[i] -= initial[i];
  EXPECT_THAT(change, Each(::testing::FloatNear(-2 - 20, 1e-4)));
}

TEST_F(HierarchicalPushTest, DDP_32_AFormerPusherThatIsNotRank0AnyMoreGivesItsSeatsBack) {
  Start(2);
  Sgd sgd;
  sgd.lr = 1;
  std::vector<Handles> all(2);
  const auto step = [&](int i, double value) {
    return all[i].push->Step(
        WithGradients(i, *all[i].push, {Must(Tensor::Full({100, 100}, DType::kF32, value))}));
  };
  InParallel(2, [&](int i) {
    JoinGroup(i, "turned", {"t1", "t0"});
    all[i] = Make(i, 2, {"w"}, sgd);
  });
  const std::vector<float> initial = Read("w");
  InParallel(2, [&](int i) { EXPECT_TRUE(step(i, 1).ok()); });  // t1 has both seats
  InParallel(2, [&](int i) {
    JoinGroup(i, "again", {"t0", "t1"});
    Recreate(i, all[i], {"w"});
    const absl::Status stepped = step(i, 1);
    EXPECT_TRUE(stepped.ok()) << stepped;
  });
  // The former pusher is still one of those for whom the round was, so nobody else is waited for.
  Kill(0);
  EXPECT_FALSE(step(1, 1000).ok());
  groups_[1] = Must(groups_[1]->Rebuild(worker(1)));
  Recreate(1, all[1], {"w"});
  const absl::Status stepped = step(1, 10);
  EXPECT_TRUE(stepped.ok()) << stepped;
  std::vector<float> change = Read("w");
  for (size_t i = 0; i < change.size(); ++i) change[i] -= initial[i];
  EXPECT_THAT(change, Each(::testing::FloatNear(-2 - 2 - 10, 1e-4)));
}

TEST_F(HierarchicalPushTest, DDP_32_APusherThatDiedAndIsStartedAgainPushesAgain) {
  Start(2);
  Sgd sgd;
  sgd.lr = 1;
  std::vector<Handles> all(2);
  InParallel(2, [&](int i) { all[i] = Make(i, 2, {"w"}, sgd); });
  const auto step = [&](int i, double value) {
    const Tensor gradient = Must(Tensor::Full({100, 100}, DType::kF32, value));
    return all[i].push->Step(WithGradients(i, *all[i].push, {gradient}));
  };
  const std::vector<float> initial = Read("w");
  InParallel(2, [&](int i) { EXPECT_TRUE(step(i, 1).ok()); });
  Kill(0);
  EXPECT_EQ(Culprit(step(1, 1000)), "t0");
  groups_[1] = Must(groups_[1]->Rebuild(worker(1)));
  Recreate(1, all[1], {"w"});
  const absl::Status stepped = step(1, 10);
  EXPECT_TRUE(stepped.ok()) << stepped;

  all[0] = Handles();
  groups_[0] = nullptr;
  WorkerOptions options = world_.Options("t0");
  options.owners.push_back(owner1_.address());
  world_.workers[0] = Must(Worker::Start(std::move(options)));
  InParallel(2, [&](int i) {
    JoinGroup(i, "again", {"t0", "t1"});
    if (i == 0) {
      all[0] = Make(0, 2, {"w"}, sgd);
    } else {
      Recreate(1, all[1], {"w"});
    }
    const absl::Status together = step(i, 3);
    EXPECT_TRUE(together.ok()) << together;
  });
  std::vector<float> change = Read("w");
  for (size_t i = 0; i < change.size(); ++i) change[i] -= initial[i];
  EXPECT_THAT(change, Each(::testing::FloatNear(-2 - 10 - 2 * 3, 1e-4)));
}

class LossScaleTest : public HierarchicalPushTest, public ::testing::WithParamInterface<int> {};

// Only the pusher's handle of the optimizer learns the scale from the owner.
TEST_P(LossScaleTest, DDP_32_AfterADeathAllRanksHaveTheLossScaleOfTheOwners) {
  constexpr int kTrainers = 3;
  const int dead = GetParam();
  scaling_ = LossScaling::Dynamic(8);
  Start(kTrainers, /*one_host=*/true);
  Sgd sgd;
  sgd.lr = 1;
  std::vector<Handles> all(kTrainers);
  InParallel(kTrainers, [&](int i) { all[i] = Make(i, kTrainers, {"w"}, sgd); });
  const auto step = [&](int i, double value) {
    StepOptions options;
    options.loss_scale = all[i].push->LossScale();
    const Tensor gradient = Must(Tensor::Full({100, 100}, DType::kF32, value * options.loss_scale));
    return all[i].push->Step(WithGradients(i, *all[i].push, {gradient}), options);
  };
  InParallel(kTrainers, [&](int i) {
    const absl::Status skipped = step(i, i == 1 ? INFINITY : 1);
    EXPECT_TRUE(skipped.ok()) << skipped;
    EXPECT_EQ(all[i].push->LossScale(), 4);
  });
  const std::vector<float> initial = Read("w");
  Kill(dead);
  InParallel(kTrainers, [&](int i) {
    if (i == dead) return;
    EXPECT_FALSE(step(i, 1000).ok());
    groups_[i] = Must(groups_[i]->Rebuild(worker(i)));
    Recreate(i, all[i], {"w"});
    EXPECT_EQ(all[i].push->LossScale(), 4);
    const absl::Status stepped = step(i, 1);
    EXPECT_TRUE(stepped.ok()) << stepped;
  });
  std::vector<float> change = Read("w");
  for (size_t i = 0; i < change.size(); ++i) change[i] -= initial[i];
  EXPECT_THAT(change, Each(::testing::FloatNear(-2, 1e-4)));
}

INSTANTIATE_TEST_SUITE_P(PusherOrAnother, LossScaleTest, ::testing::Values(0, 2));

}  // namespace
}  // namespace psd
