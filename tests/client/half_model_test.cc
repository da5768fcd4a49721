// One owner has lost its part of a model. Creating, stepping and saving the optimizer notice this,
// and the model can be completed again.

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/checkpoint.h"
#include "client/psd.h"
#include "client/runtime_of.h"
#include "core/base/ids.h"
#include "core/base/status.h"
#include "core/rpc/rpc_agent.h"
#include "core/runtime/runtime.h"
#include "core/services/optimizers/optimizer_service.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/half_model_world.h"
#include "tests/client/test_world.h"

namespace psd {
namespace {

using ::testing::HasSubstr;

// Each test runs with owner0 restarted, which is the owner that is asked first, and with owner1.
class RestartedOwner : public HalfModel, public ::testing::WithParamInterface<size_t> {};
INSTANTIATE_TEST_SUITE_P(Each, RestartedOwner, ::testing::Values(0, 1));

TEST_P(RestartedOwner, CreateRefusesWithTheRemedy) {
  Train(3);
  Restart(GetParam());
  auto trainer = Attach();
  const absl::Status created = Create(*trainer).status();
  EXPECT_EQ(created.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Text(created), HasSubstr(Owner(GetParam()) + " was restarted"));
  EXPECT_THAT(Text(created), HasSubstr("3 steps"));
  EXPECT_THAT(Text(created), HasSubstr("--only-missing"));
  const auto detail = GetDetail(created);
  ASSERT_TRUE(detail.has_value());
  EXPECT_EQ(detail->worker, Owner(GetParam()));
  EXPECT_THAT(detail->remedy, HasSubstr("--only-missing"));
  EXPECT_EQ(Create(*trainer).status().code(), absl::StatusCode::kFailedPrecondition)
      << "and made no part that would be found now";
}

TEST_P(RestartedOwner, SaveRefusesAndTheLastOneStays) {
  Train(3);
  auto first = Attach("first");
  ASSERT_TRUE(Save(*first).ok());
  const auto saved = disk_->files();
  Restart(GetParam());
  auto trainer = Attach();
  for (const bool with_zeros : {false, true}) {
    if (with_zeros) Parameters(*trainer);
    const absl::Status refused = Save(*trainer);
    EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << refused;
    EXPECT_THAT(Text(refused), HasSubstr(Owner(GetParam()) + " was restarted"));
  }
  EXPECT_EQ(disk_->files(), saved);
}

TEST_P(RestartedOwner, ARunningTrainersStepIsAppliedNowhere) {
  auto trainer = Attach();
  auto optimizer = Must(Create(*trainer));
  Steps(*trainer, *optimizer, 3);
  const size_t gone = GetParam(), left = 1 - gone;
  Restart(gone);
  RuntimeOf(*trainer).agent().AddPeer(Owner(gone), owners_[gone]->address().address);
  const Incarnation there = owners_[gone]->runtime().incarnation();
  const absl::Time until = absl::Now() + absl::Minutes(1);
  for (;;) {  // until the trainer has noticed the restart
    const auto connected = RuntimeOf(*trainer).agent().Connect(Owner(gone), {}).Wait();
    if (connected.ok() && connected->incarnation == there) break;
    ASSERT_LT(absl::Now(), until) << connected.status();
    std::this_thread::yield();
  }
  const std::vector<float> before = First(*trainer);
  const StepOutcome outcome = Step(*trainer, *optimizer);
  EXPECT_EQ(outcome.refused.code(), absl::StatusCode::kFailedPrecondition) << outcome.status();
  EXPECT_THAT(Text(outcome.status()), HasSubstr(Owner(gone) + " was restarted"));
  EXPECT_EQ(First(*trainer)[left], before[left]);
}

TEST_P(RestartedOwner, OnlyTheMissingHalfIsLoaded) {
  Train(3);
  auto first = Attach("first");
  const std::vector<float> at_save = First(*first);
  ASSERT_TRUE(Save(*first).ok());
  Restart(GetParam());
  auto trainer = Attach();
  EXPECT_FALSE(Create(*trainer).ok());  // leaves zeros on the restarted owner
  const LoadSummary loaded = Must(LoadModel(*trainer, Loading(/*only_missing=*/true)));
  EXPECT_EQ(loaded.values, (std::map<std::string, size_t>{{Owner(GetParam()), 1}}));
  EXPECT_EQ(loaded.optimizers, 1u);
  EXPECT_EQ(First(*trainer), at_save);
  auto optimizer = Must(Create(*trainer));
  const StepOutcome outcome = Step(*trainer, *optimizer);
  ASSERT_TRUE(outcome.status().ok()) << outcome.status();
  for (const OwnerOutcome& owner : outcome.owners) EXPECT_EQ(owner.steps_accepted, 4u);
  const std::vector<float> now = First(*trainer);
  EXPECT_EQ(now[0], now[1]) << "the momentum is back, too";
  EXPECT_TRUE(Save(*trainer).ok());
}

// The restarted owner may be the lead, which then numbers changes of options from the beginning.
TEST_P(RestartedOwner, OptionsChangeEverywhereAfterItWasBroughtBack) {
  auto first = Attach("first");
  {
    auto optimizer = Must(Create(*first));
    for (const double lr : {2, 3, 4}) ASSERT_TRUE(optimizer->SetOptions(0, {{"lr", lr}}).ok());
  }
  ASSERT_TRUE(Save(*first).ok());
  Restart(GetParam());
  auto trainer = Attach();
  ASSERT_TRUE(LoadModel(*trainer, Loading(/*only_missing=*/true)).ok());
  auto optimizer = Must(Create(*trainer));
  Steps(*trainer, *optimizer, 1);
  EXPECT_EQ(First(*trainer), (std::vector<float>{-4, -4})) << "as they were saved";
  ASSERT_TRUE(optimizer->SetOptions(0, {{"lr", 2}}).ok());
  Steps(*trainer, *optimizer, 1);
  EXPECT_EQ(First(*trainer), (std::vector<float>{-7, -7})) << "with a momentum of 1.5";
}

TEST_P(RestartedOwner, AnOldHalfIsNotPutBesideANewOne) {
  auto first = Attach("first");
  auto training = Must(Create(*first));
  Steps(*first, *training, 3);
  ASSERT_TRUE(Save(*first).ok());
  Steps(*first, *training, 2);
  Restart(GetParam());
  auto trainer = Attach();
  const absl::Status refused = LoadModel(*trainer, Loading(true)).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Text(refused), HasSubstr(Owner(1 - GetParam()) + "'s part"));
  EXPECT_THAT(Text(refused), HasSubstr("5 steps"));
  EXPECT_THAT(Text(refused), HasSubstr("after 3"));
  EXPECT_THAT(Text(refused), HasSubstr("--accept-skew"));
  EXPECT_FALSE(Create(*trainer).ok()) << "nothing was loaded";
  ASSERT_TRUE(LoadModel(*trainer, Loading(true, /*accept_skew=*/true)).ok());
  auto optimizer = Must(Create(*trainer));
  EXPECT_TRUE(Step(*trainer, *optimizer).status().ok());
}

TEST_P(RestartedOwner, AHalfOfAnotherLifeIsNotPutBesideANewOne) {
  Train(3);
  auto first = Attach("first");
  ASSERT_TRUE(Save(*first).ok());
  ASSERT_TRUE(LoadModel(*first, Loading(false)).ok());  // begins a new life with the same steps
  Restart(GetParam());
  auto trainer = Attach();
  const absl::Status refused = LoadModel(*trainer, Loading(true)).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Text(refused), HasSubstr("another life"));
  EXPECT_TRUE(LoadModel(*trainer, Loading(true, /*accept_skew=*/true)).ok());
}

TEST_P(RestartedOwner, AFreshStartIsSaidOnPurpose) {
  Train(3);
  Restart(GetParam());
  auto trainer = Attach();
  JoinOptions afresh;
  afresh.start_afresh = true;
  auto optimizer = Must(Create(*trainer, afresh));
  StepOutcome outcome = Step(*trainer, *optimizer);
  ASSERT_TRUE(outcome.status().ok()) << outcome.status();
  for (const OwnerOutcome& owner : outcome.owners) EXPECT_EQ(owner.steps_accepted, 1u);
  // Further trainers join the optimizer, with start_afresh and without it.
  auto second = Attach("second");
  auto same = Must(Create(*second, afresh));
  auto third = Attach("third");
  auto also = Must(Create(*third));
  ASSERT_TRUE(Step(*second, *same).status().ok());
  outcome = Step(*third, *also);
  for (const OwnerOutcome& owner : outcome.owners) EXPECT_EQ(owner.steps_accepted, 3u);
  EXPECT_TRUE(Save(*trainer).ok());
}

TEST_F(HalfModel, APartThatWasDroppedIsMissed) {
  Train(3);
  auto trainer = Attach();
  ASSERT_TRUE(trainer->Drop("owner1", kName).ok());
  for (const absl::Status& refused : {Create(*trainer).status(), Save(*trainer)}) {
    EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(Text(refused), HasSubstr("owner1 has no part of it"));
  }
}

// The old trainer still refers to the parts from before the fresh start.
TEST_F(HalfModel, ATrainerOfWhatWasBegunAfreshStepsNothingAnyMore) {
  auto old = Attach("old");
  auto before = Must(Create(*old));
  Steps(*old, *before, 3);
  auto trainer = Attach();
  ASSERT_TRUE(trainer->Drop("owner1", kName).ok());
  StepOutcome refused = Step(*old, *before);
  EXPECT_EQ(refused.owners[1].status.code(), absl::StatusCode::kFailedPrecondition);
  JoinOptions afresh;
  afresh.start_afresh = true;
  auto after = Must(Create(*trainer, afresh));
  const std::vector<float> first = First(*trainer);
  refused = Step(*old, *before);
  for (const OwnerOutcome& owner : refused.owners) {
    EXPECT_EQ(owner.status.code(), absl::StatusCode::kFailedPrecondition) << owner.status;
    EXPECT_THAT(Text(owner.status), HasSubstr("begun afresh"));
  }
  EXPECT_EQ(First(*trainer), first);
  const StepOutcome stepped = Step(*trainer, *after);
  for (const OwnerOutcome& owner : stepped.owners) EXPECT_EQ(owner.steps_accepted, 1u);
}

TEST_F(HalfModel, OnlyALostPartIsBegunAfresh) {
  auto trainer = Attach();
  auto optimizer = Must(Create(*trainer));
  Steps(*trainer, *optimizer, 3);
  ASSERT_TRUE(Save(*trainer).ok());
  JoinOptions afresh;
  afresh.start_afresh = true;
  const std::vector<RRef> some = {Parameters(*trainer)[0]};
  const absl::Status others =
      DistributedOptimizer::Create(*trainer, kName, Sgd{0.5, 0.5}, some, {}, afresh).status();
  EXPECT_EQ(others.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Text(others), HasSubstr("give the same parameters"));
  Steps(*trainer, *optimizer, 1);  // the optimizer is still whole
  LoadOptions stopped = Loading(false);
  stopped.progress = [](const TransferProgress& progress) {
    return progress.activity != "loading";
  };
  ASSERT_FALSE(LoadModel(*trainer, stopped).ok());
  const absl::Status loading = Create(*trainer, afresh).status();
  EXPECT_EQ(loading.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Text(loading), HasSubstr("load has not finished"));
}

TEST_F(HalfModel, AnOwnerThatIsNotThereIsMissedByASave) {
  Train(3);
  auto trainer = StartTrainer("trainer", {owners_[0]->address()});
  const absl::Status refused = Save(*trainer);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Text(refused), HasSubstr("owner1 is not among the owners"));
  SaveOptions these;
  these.dir = "saves";
  these.files = disk_;
  these.owners = {"owner0"};
  EXPECT_TRUE(SaveModel(*trainer, these).ok()) << "unless the owners are named";
  SaveOptions without = these;
  without.owners = {};
  without.leave_out = {"owner2"};
  EXPECT_EQ(SaveModel(*trainer, without).status().code(), absl::StatusCode::kFailedPrecondition);
  without.leave_out = {"owner1"};
  EXPECT_TRUE(SaveModel(*trainer, without).ok()) << "or it is left out on purpose";
}

TEST_F(HalfModel, OtherOwnersAreAnotherOptimizer) {
  Train(1);
  auto trainer = Attach();
  const absl::Status refused =
      DistributedOptimizer::Create(*trainer, kName, Sgd{0.5, 0.5}, {Parameters(*trainer)[0]})
          .status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(HalfModel, APartThatTheLeadRefusesIsMadeNowhere) {
  auto trainer = Attach();
  CreateOptions plain;
  Must(trainer->GetOrCreate("owner0", kName, Zeros(Shape{3}), plain));
  EXPECT_FALSE(Create(*trainer).ok());
  const auto part = RuntimeOf(*trainer).optimizer_service().Part("owner1", kName, {}).Wait();
  EXPECT_FALSE(Must(part).hosted);
}

TEST_F(HalfModel, APartIsNotDroppedForOneThatCannotBe) {
  Train(3);
  auto trainer = Attach();
  ASSERT_TRUE(trainer->Drop("owner1", kName).ok());
  std::vector<RRef> parameters = Parameters(*trainer);
  CreateOptions plain;
  parameters.push_back(Must(trainer->GetOrCreate("owner0", "plain", Zeros(Shape{3}), plain)));
  JoinOptions afresh;
  afresh.start_afresh = true;
  const absl::Status refused =
      DistributedOptimizer::Create(*trainer, kName, Sgd{0.5, 0.5}, parameters, {}, afresh).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << refused;
  const auto part = RuntimeOf(*trainer).optimizer_service().Part("owner0", kName, {}).Wait();
  EXPECT_EQ(Must(part).steps, 3u);
}

TEST_F(HalfModel, TrainersThatCreateItAtOnceShareOne) {
  constexpr int kTrainers = 6;
  std::vector<std::unique_ptr<Worker>> trainers;
  for (int i = 0; i < kTrainers; ++i) trainers.push_back(Attach("t" + std::to_string(i)));
  std::vector<Optimizer> optimizers(kTrainers);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < kTrainers; ++i) {
    threads.emplace_back([&, i] {
      std::vector<RRef> parameters = Parameters(*trainers[i]);
      if (i % 2 == 1) std::swap(parameters[0], parameters[1]);
      optimizers[i] =
          Must(DistributedOptimizer::Create(*trainers[i], kName, Sgd{0.5, 0.5}, parameters));
    });
  }
  for (std::thread& thread : threads) thread.join();
  StepOutcome last;
  for (size_t i = 0; i < kTrainers; ++i) {
    last = Step(*trainers[i], *optimizers[i]);
    ASSERT_TRUE(last.status().ok()) << last.status();
  }
  for (const OwnerOutcome& owner : last.owners)
    EXPECT_EQ(owner.steps_accepted, static_cast<uint64_t>(kTrainers));
}

}  // namespace
}  // namespace psd
