// Trainers that step one optimizer of several owners in synchronous rounds.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <future>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/psd.h"
#include "client/runtime_of.h"
#include "core/carrier/grpc/grpc_factory.h"
#include "core/rpc/rpc_agent.h"
#include "core/rref/rref_context.h"
#include "core/runtime/runtime.h"
#include "gtest/gtest.h"
#include "tests/client/optimizer_fixture.h"
#include "tests/client/test_world.h"
#include "tests/core/picky_carrier.h"

namespace psd {
namespace {

TEST_F(ModesTest, ASynchronousRoundIsOneStepOfAllTrainers) {
  OptimizerSettings settings;
  settings.mode = UpdateMode::Synchronous(2);
  auto mine = Shared(*trainer_, settings), theirs = Shared(*other_, settings);
  for (int round = 1; round <= 3; ++round) {
    auto a = StepAsync(*trainer_, *mine, 1, 0), b = StepAsync(*other_, *theirs, 3, 1);
    StepOutcome outcome = a.get();
    ASSERT_TRUE(outcome.status().ok()) << outcome.status();
    ASSERT_TRUE(b.get().status().ok());
    EXPECT_EQ(outcome.owners[0].trainers, 2);
    EXPECT_EQ(outcome.owners[0].steps_accepted, static_cast<uint64_t>(round));
    EXPECT_EQ(First(w_), 10 - 2 * round);
    EXPECT_EQ(First(b_), 10 - 0.5f * static_cast<float>(round));
  }
}

TEST_F(ModesTest, DDP_32_AStepForSeveralSeatsCountsAsTheStepsOfSeveralTrainers) {
  OptimizerSettings settings;
  settings.mode = UpdateMode::Synchronous(4);
  auto mine = Shared(*trainer_, settings), theirs = Shared(*other_, settings);
  StepOptions three, clipped;
  three.seats = 3;
  for (const double norm : {std::numeric_limits<double>::infinity(), 1000.0}) {
    const float before = First(w_);
    three.clip_norm = clipped.clip_norm = norm;
    // The sum of three trainers' gradients, and that of a fourth.
    auto a = StepAsync(*trainer_, *mine, 6, 3, three),
         b = StepAsync(*other_, *theirs, 2, 1, clipped);
    const StepOutcome outcome = a.get();
    ASSERT_TRUE(outcome.status().ok()) << outcome.status();
    ASSERT_TRUE(b.get().status().ok());
    for (const OwnerOutcome& owner : outcome.owners) EXPECT_EQ(owner.trainers, 4) << owner.owner;
    EXPECT_EQ(First(w_), before - 2);
    EXPECT_EQ(First(b_), (before - 10) / 2 + 10 - 1);
  }
}

// A handle that did not take the last step does not know that the scale has changed since.
TEST_F(ModesTest, DDP_32_ATrainerWithAFormerLossScaleLearnsThePresentOneFromARefusal) {
  OptimizerSettings settings;
  settings.mode = UpdateMode::Synchronous(2, UpdateMode::Reduction::kSum);
  settings.loss_scaling = LossScaling::Dynamic(8);
  auto old = Shared(*trainer_, settings), mine = Shared(*trainer_, settings),
       theirs = Shared(*other_, settings);
  const auto scaled = [](double scale) {
    StepOptions options;
    options.loss_scale = scale;
    return options;
  };
  auto a = StepAsync(*trainer_, *mine, INFINITY, 8, scaled(8)),
       b = StepAsync(*other_, *theirs, 8, 8, scaled(8));
  ASSERT_TRUE(a.get().skipped);
  ASSERT_TRUE(b.get().skipped);
  b = StepAsync(*other_, *theirs, 4, 4, scaled(theirs->LossScale()));
  AwaitWaiting(1);
  const double former = old->LossScale();
  EXPECT_EQ(former, 8);
  const absl::Status refused =
      StepAsync(*trainer_, *old, former, former, scaled(former)).get().status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << refused;
  EXPECT_EQ(old->LossScale(), 4);
  a = StepAsync(*trainer_, *old, 4, 4, scaled(old->LossScale()));
  EXPECT_TRUE(a.get().status().ok());
  EXPECT_TRUE(b.get().status().ok());
  EXPECT_EQ(First(w_), 8);
}

TEST_F(ModesTest, DDP_32_TooManySeatsAreAClearError) {
  OptimizerSettings settings;
  settings.mode = UpdateMode::Synchronous(2);
  auto mine = Shared(*trainer_, settings), theirs = Shared(*other_, settings);
  const auto asynchronous = Must(DistributedOptimizer::Create(*trainer_, kSgd1, {b_}));
  const Context context = Collect(*trainer_, {{w_, 1}});
  StepOptions seats;
  for (const uint32_t wrong : {0, 3}) {
    seats.seats = wrong;
    EXPECT_EQ(mine->Step(context, seats).code(), absl::StatusCode::kInvalidArgument);
  }
  seats.seats = 2;
  EXPECT_EQ(asynchronous->Step(context, seats).code(), absl::StatusCode::kInvalidArgument);
  OptimizerSettings alone;
  alone.mode = UpdateMode::Synchronous(1);
  const auto single = Must(DistributedOptimizer::Create(*trainer_, "alone", kSgd1, {b_}, alone));
  const absl::Status too_many = single->Step(context, seats);
  EXPECT_NE(too_many.message().find("from 1 to 1, the number of its trainers"), std::string::npos)
      << too_many;
  auto one = StepAsync(*other_, *theirs, 1, 1);
  AwaitWaiting(1);
  const absl::Status refused = mine->Step(context, seats);
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted) << refused;
  EXPECT_NE(refused.message().find("other trainers have 1 and 1 are left"), std::string::npos)
      << refused;
  seats.seats = 1;
  EXPECT_TRUE(mine->Step(context, seats).ok());
  EXPECT_TRUE(one.get().status().ok());
}

TEST_F(ModesTest, AMemberWhoseSessionEndsIsDroppedAndNobodyHangs) {
  OptimizerSettings settings;
  settings.mode = UpdateMode::Synchronous(2, UpdateMode::Reduction::kSum);
  auto mine = Shared(*trainer_, settings), theirs = Shared(*other_, settings);
  auto a = StepAsync(*trainer_, *mine, 1, 1), b = StepAsync(*other_, *theirs, 1, 1);
  ASSERT_TRUE(a.get().status().ok());
  ASSERT_TRUE(b.get().status().ok());
  auto alone = StepAsync(*trainer_, *mine, 1, 1);
  AwaitWaiting(1);
  other_.reset();  // its sessions end
  StepOutcome outcome = alone.get();
  ASSERT_TRUE(outcome.status().ok()) << outcome.status();
  EXPECT_EQ(outcome.owners[0].trainers, 1);
  EXPECT_EQ(First(w_), 7);
  EXPECT_EQ(First(b_), 7);
}

TEST_F(ModesTest, AMemberThatLetsItsOptimizerGoIsNotWaitedFor) {
  OptimizerSettings settings;
  settings.mode = UpdateMode::Synchronous(2, UpdateMode::Reduction::kSum);
  auto mine = Shared(*trainer_, settings), theirs = Shared(*other_, settings);
  auto a = StepAsync(*trainer_, *mine, 1, 1), b = StepAsync(*other_, *theirs, 1, 1);
  ASSERT_TRUE(a.get().status().ok());
  ASSERT_TRUE(b.get().status().ok());
  auto alone = StepAsync(*trainer_, *mine, 1, 1);
  AwaitWaiting(1);
  theirs.reset();
  EXPECT_TRUE(alone.get().status().ok());
  EXPECT_EQ(First(w_), 7);
}

TEST_F(ModesTest, WhoGivesUpWaitingHasAppliedNothing) {
  OptimizerSettings settings;
  settings.mode = UpdateMode::Synchronous(2, UpdateMode::Reduction::kSum);
  auto mine = Shared(*trainer_, settings), theirs = Shared(*other_, settings);
  StepOptions hasty;
  hasty.timeout = absl::Milliseconds(200);
  StepOutcome late = StepAsync(*trainer_, *mine, 1, 1, hasty).get();
  EXPECT_FALSE(late.status().ok());  // the trainer or an owner notices the timeout first
  AwaitWaiting(0);
  auto a = StepAsync(*trainer_, *mine, 2, 2), b = StepAsync(*other_, *theirs, 1, 1);
  ASSERT_TRUE(a.get().status().ok());
  ASSERT_TRUE(b.get().status().ok());
  EXPECT_EQ(First(w_), 7);
  EXPECT_EQ(First(b_), 7);
}

TEST_F(ModesTest, ARoundIsClippedByTheNormOfItsOwnGradients) {
  OptimizerSettings settings;
  settings.mode = UpdateMode::Synchronous(2);
  auto mine = Shared(*trainer_, settings), theirs = Shared(*other_, settings);
  StepOptions clip;
  clip.clip_norm = std::sqrt(50.0) / 2;
  // The means are 3 and 4, each in two elements.
  auto a = StepAsync(*trainer_, *mine, 6, 1, clip), b = StepAsync(*other_, *theirs, 0, 7, clip);
  StepOutcome outcome = a.get();
  ASSERT_TRUE(outcome.status().ok()) << outcome.status();
  ASSERT_TRUE(b.get().status().ok());
  EXPECT_DOUBLE_EQ(outcome.gradient_norm, std::sqrt(50.0));
  EXPECT_FLOAT_EQ(First(w_), 8.5f);
  EXPECT_FLOAT_EQ(First(b_), 8);
}

TEST_F(ModesTest, OverflowOfOneTrainerSkipsTheRoundForAll) {
  OptimizerSettings settings;
  settings.mode = UpdateMode::Synchronous(2);
  settings.loss_scaling = LossScaling::Dynamic(8);
  auto mine = Shared(*trainer_, settings), theirs = Shared(*other_, settings);
  StepOptions scaled;
  scaled.loss_scale = 8;
  auto a = StepAsync(*trainer_, *mine, 8, 8, scaled);
  auto b = StepAsync(*other_, *theirs, 8, std::numeric_limits<double>::infinity(), scaled);
  EXPECT_TRUE(a.get().skipped);
  EXPECT_TRUE(b.get().skipped);
  EXPECT_EQ(First(w_), 10);
  EXPECT_EQ(mine->LossScale(), 4);
  EXPECT_EQ(theirs->LossScale(), 4);
  scaled.loss_scale = 4;
  a = StepAsync(*trainer_, *mine, 4, 8, scaled);
  b = StepAsync(*other_, *theirs, 4, 0, scaled);
  ASSERT_TRUE(a.get().status().ok());
  ASSERT_TRUE(b.get().status().ok());
  EXPECT_EQ(First(w_), 9);
  EXPECT_EQ(First(b_), 9);
}

TEST_F(ModesTest, RoundsNeedANameAndAgreement) {
  OptimizerSettings settings;
  settings.mode = UpdateMode::Synchronous(2);
  auto mine = Shared(*trainer_, settings);
  EXPECT_EQ(DistributedOptimizer::Create(*trainer_, kSgd1, {w_}, settings).status().code(),
            absl::StatusCode::kInvalidArgument);
  settings.mode.trainers = 3;
  EXPECT_EQ(
      DistributedOptimizer::Create(*trainer_, "main", kSgd1, {w_, b_}, settings).status().code(),
      absl::StatusCode::kFailedPrecondition);
}

TEST_F(ModesTest, ClippingAfterAMemberHasDiedWaitsForNobody) {
  OptimizerSettings settings;
  settings.mode = UpdateMode::Synchronous(2, UpdateMode::Reduction::kSum);
  auto mine = Shared(*trainer_, settings), theirs = Shared(*other_, settings);
  auto a = StepAsync(*trainer_, *mine, 1, 1), b = StepAsync(*other_, *theirs, 1, 1);
  ASSERT_TRUE(a.get().status().ok());
  ASSERT_TRUE(b.get().status().ok());
  other_.reset();
  StepOptions clip;
  clip.clip_norm = 1000;
  StepOutcome outcome = StepAsync(*trainer_, *mine, 1, 1, clip).get();
  ASSERT_TRUE(outcome.status().ok()) << outcome.status();
  EXPECT_EQ(First(w_), 7);
}

// The hasty trainer's request to measure reaches only the lead. On the follower the other trainer
// waits for it until it gives the round up.
TEST(LeadTest, AMeasureThatIsCutOffOnOneOwnerLeavesNobodyInAnotherRound) {
  std::atomic<bool> cut{true};
  // The step's incarnation with the tags of its field and of the next one, which no other field of
  // the request to measure has around it: the other trainer's request names this one as a member.
  std::string mark;
  testing::PickyRules rules;
  rules.loses = [&](const carrier::Message& message) {
    return cut && message.header.find("optimizer.prepare") != std::string::npos &&
           message.header.find(mark) != std::string::npos;
  };
  worker::RuntimeOptions picky;
  picky.carrier = std::make_shared<testing::PickyCarrier>(Must(carrier::NewGrpcCarrier({})), rules);
  TestOwner lead("owner0"), follower("owner1", std::move(picky));
  auto hasty = StartTrainer("trainer0", {lead.address(), follower.address()});
  auto patient = StartTrainer("trainer1", {lead.address(), follower.address()});
  const Incarnation incarnation = RuntimeOf(*hasty).incarnation();
  mark = '\x31' + std::string(reinterpret_cast<const char*>(&incarnation), sizeof(incarnation)) +
         '\x38';
  const auto parameters = [&](Worker& worker) {
    return std::vector<RRef>{MakeParameter(worker, "owner0", "w", Tensor::Of<float>({1}, {10})),
                             MakeParameter(worker, "owner1", "b", Tensor::Of<float>({1}, {10}))};
  };
  OptimizerSettings settings;
  settings.mode = UpdateMode::Synchronous(2, UpdateMode::Reduction::kSum);
  StepOptions clip;
  clip.clip_norm = 1000;
  const auto step = [&](Worker& worker, DistributedOptimizer& optimizer, StepOptions options) {
    return std::async(std::launch::async, [&, options] {
      const RRef w = Must(worker.Lookup("owner0", "w")), b = Must(worker.Lookup("owner1", "b"));
      return optimizer.StepDetailed(Collect(worker, {{w, 1}, {b, 1}}), options);
    });
  };
  const std::vector<RRef> values = parameters(*hasty);
  auto mine = Must(DistributedOptimizer::Create(*hasty, "main", kSgd1, values, settings));
  auto theirs = Must(DistributedOptimizer::Create(
      *patient, "main", kSgd1,
      {Must(patient->Lookup("owner0", "w")), Must(patient->Lookup("owner1", "b"))}, settings));
  StepOptions short_clip = clip;
  short_clip.timeout = absl::Seconds(10);
  auto b = step(*patient, *theirs, clip);
  AwaitWaiting(lead, 1);  // later than the hasty step's end it would wait for another one
  const Context kept = Collect(*hasty, {{values[0], 1}, {values[1], 1}});  // for the second try
  const StepOutcome cut_off = mine->StepDetailed(kept, short_clip), alone = b.get();
  EXPECT_FALSE(cut_off.status().ok());
  ASSERT_TRUE(alone.status().ok()) << alone.status();
  for (const OwnerOutcome& owner : alone.owners) EXPECT_EQ(owner.trainers, 1) << owner.owner;
  cut = false;
  // Both go on together, with other options, and the failed step is applied when it is tried again.
  for (const StepOptions& options : {StepOptions{}, clip}) {
    auto a = step(*hasty, *mine, options);
    b = step(*patient, *theirs, options);
    EXPECT_EQ(a.get().status(), absl::OkStatus());
    EXPECT_EQ(b.get().status(), absl::OkStatus());
  }
  b = step(*patient, *theirs, clip);
  EXPECT_EQ(mine->RetryFailed(cut_off).status(), absl::OkStatus());
  EXPECT_EQ(b.get().status(), absl::OkStatus());
  for (const RRef& value : values) EXPECT_EQ(Read(*hasty, value)[0], 10 - 1 - 4 - 2);
}

// Both trainers lose their sessions with one owner, and one of them steps with the optimizer that
// it had created before.
TEST(LeadTest, AnOptimizerOfALostSessionTakesNoTurnForWhichOthersWouldWait) {
  std::atomic<bool> cut{false};
  testing::PickyRules rules;
  rules.refuses = [&](const carrier::Message&) -> absl::Status {
    return cut ? absl::UnavailableError("the network is down") : absl::OkStatus();
  };
  rules.loses = [&](const carrier::Message&) { return cut.load(); };
  worker::RuntimeOptions picky;
  picky.carrier = std::make_shared<testing::PickyCarrier>(Must(carrier::NewGrpcCarrier({})), rules);
  TestOwner lead("owner0"), follower("owner1", std::move(picky));
  auto trainer = StartTrainer("trainer0", {lead.address(), follower.address()});
  auto other = StartTrainer("trainer1", {lead.address(), follower.address()});
  MakeParameter(*trainer, "owner0", "w", Tensor::Of<float>({1}, {10}));
  MakeParameter(*trainer, "owner1", "b", Tensor::Of<float>({1}, {10}));
  const auto parameters = [](Worker& worker) {
    return std::vector<RRef>{Must(worker.Lookup("owner0", "w")),
                             Must(worker.Lookup("owner1", "b"))};
  };
  OptimizerSettings settings;
  settings.mode = UpdateMode::Synchronous(2, UpdateMode::Reduction::kSum);
  const auto create = [&](Worker& worker) {
    return Must(DistributedOptimizer::Create(worker, "main", kSgd1, parameters(worker), settings));
  };
  const auto old = create(*trainer);
  const RRef mine = parameters(*trainer)[1], theirs = parameters(*other)[1];
  const auto has_sessions = [&] {
    const std::vector<rpc::PeerStatus> peers = follower.runtime().agent().Peers();
    return std::any_of(peers.begin(), peers.end(), [](const rpc::PeerStatus& peer) {
      return peer.peer.name != "owner1" && peer.epoch_here != 0;
    });
  };
  cut = true;
  while (has_sessions()) std::this_thread::yield();
  cut = false;
  while (RuntimeOf(*trainer).rrefs().CheckUsable(mine).ok()) std::this_thread::yield();
  while (RuntimeOf(*other).rrefs().CheckUsable(theirs).ok()) std::this_thread::yield();

  const auto fresh = create(*trainer), others = create(*other);
  StepOptions patient;
  patient.timeout = absl::Seconds(60);
  const auto step = [&](Worker& worker, DistributedOptimizer& optimizer) {
    return std::async(std::launch::async, [&] {
      const std::vector<RRef> values = parameters(worker);
      return optimizer.StepDetailed(Collect(worker, {{values[0], 1}, {values[1], 1}}), patient);
    });
  };
  auto waits = step(*other, *others);
  const StepOutcome refused = step(*trainer, *old).get();
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kAborted) << refused.status();
  EXPECT_TRUE(refused.owners.empty());
  EXPECT_EQ(step(*trainer, *fresh).get().status(), absl::OkStatus());
  EXPECT_EQ(waits.get().status(), absl::OkStatus());
  for (const RRef& value : parameters(*trainer)) EXPECT_EQ(Read(*trainer, value)[0], 8);
}

TEST_F(ModesTest, TrainersThatMeasureAndTrainersThatDoNotAreToldSo) {
  OptimizerSettings settings;
  settings.mode = UpdateMode::Synchronous(2, UpdateMode::Reduction::kSum);
  auto mine = Shared(*trainer_, settings), theirs = Shared(*other_, settings);
  StepOptions clip;
  clip.clip_norm = 1000;
  auto measures = StepAsync(*trainer_, *mine, 1, 1, clip);
  AwaitWaiting(1);
  EXPECT_EQ(StepAsync(*other_, *theirs, 1, 1).get().status().code(),
            absl::StatusCode::kFailedPrecondition);
  auto agrees = StepAsync(*other_, *theirs, 1, 1, clip);
  EXPECT_TRUE(measures.get().status().ok());
  EXPECT_TRUE(agrees.get().status().ok());
}

}  // namespace
}  // namespace psd
