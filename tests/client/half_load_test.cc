// Loads into a model that is trained, that stop half-way, or that leave a part as it is.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/checkpoint.h"
#include "client/psd.h"
#include "client/runtime_of.h"
#include "core/runtime/runtime.h"
#include "core/services/checkpoint/checkpoint_service.h"
#include "core/services/checkpoint/checkpoint_types.h"
#include "core/services/optimizers/optimizer_service.h"
#include "core/services/values/value_service.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/half_model_world.h"
#include "tests/client/test_world.h"

namespace psd {
namespace {

using ::testing::HasSubstr;

class HalfLoad : public HalfModel {
 protected:
  // Returns options for loading what is missing. With each report of progress owner0, which kept
  // its part, takes a step.
  LoadOptions LoadingWhileOwner0Steps(Worker& worker) {
    LoadOptions options = Loading(/*only_missing=*/true);
    options.progress = [&runtime = RuntimeOf(worker)](const TransferProgress& progress) {
      if (progress.activity != "loading") return true;
      const RRef part = Must(runtime.values().Lookup("owner0", kName, {}).Wait());
      const auto life = Must(runtime.optimizer_service().Part("owner0", kName, {}).Wait()).life;
      const services::StepCall step{runtime.ids().Next(), {}, {}, 0, false, life.id};
      EXPECT_TRUE(runtime.optimizer_service().Step(part, step, {}).Wait().ok());
      return true;
    };
    return options;
  }
};

TEST_F(HalfLoad, ALoadEndsTheLifeOfOptimizersFromBefore) {
  auto trainer = Attach();
  auto before = Must(Create(*trainer));
  Steps(*trainer, *before, 3);
  ASSERT_TRUE(Save(*trainer).ok());
  ASSERT_TRUE(LoadModel(*trainer, Loading(false)).ok());
  const std::vector<float> loaded = First(*trainer);
  const absl::Status refused = Step(*trainer, *before).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Text(refused), HasSubstr("loaded or begun afresh"));
  EXPECT_EQ(First(*trainer), loaded);
  auto after = Must(Create(*trainer));
  EXPECT_TRUE(Step(*trainer, *after).status().ok());
}

TEST_F(HalfLoad, ATurnIsOnlyForStepsOfTheLifeThatIs) {
  OptimizerSettings paced;
  paced.mode = UpdateMode::BoundedStaleness(0, UpdateMode::WhenStale::kWait);
  auto trainer = Attach();
  auto before = Must(Create(*trainer, {}, paced));
  Steps(*trainer, *before, 3);
  ASSERT_TRUE(Save(*trainer).ok());
  ASSERT_TRUE(LoadModel(*trainer, Loading(false)).ok());
  const StepOutcome outcome = Step(*trainer, *before);
  EXPECT_EQ(outcome.refused.code(), absl::StatusCode::kFailedPrecondition) << outcome.status();
  EXPECT_THAT(Text(outcome.refused), HasSubstr("loaded or begun afresh"));
  auto after = Must(Create(*trainer, {}, paced));
  EXPECT_TRUE(Step(*trainer, *after).status().ok());
}

TEST_F(HalfLoad, ALoadThatStoppedHalfWayIsNoticed) {
  Train(3);
  auto trainer = Attach();
  ASSERT_TRUE(Save(*trainer).ok());
  LoadOptions stopped = Loading(false);
  stopped.progress = [](const TransferProgress& progress) {
    return progress.activity != "loading";
  };
  EXPECT_EQ(LoadModel(*trainer, stopped).status().code(), absl::StatusCode::kCancelled);
  for (const absl::Status& refused : {Create(*trainer).status(), Save(*trainer)}) {
    EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(Text(refused), HasSubstr("load has not finished"));
  }
  ASSERT_TRUE(LoadModel(*trainer, Loading(false)).ok());
  EXPECT_TRUE(Create(*trainer).ok());
}

// The values of such a save would be partly from before the load and partly from after it.
TEST_F(HalfLoad, ASaveBesideALoadIsNotPublished) {
  Train(3);
  auto trainer = Attach();
  ASSERT_TRUE(Save(*trainer).ok());
  const auto saved = disk_->files();
  auto loader = Attach("loader");
  bool loads = true;
  SaveOptions beside;
  beside.dir = "saves";
  beside.files = disk_;
  beside.busy_share = 1;
  beside.progress = [&](const TransferProgress&) {
    if (std::exchange(loads, false)) {
      EXPECT_TRUE(LoadModel(*loader, Loading(false)).ok());
    }
    return true;
  };
  const absl::Status refused = SaveModel(*trainer, beside).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << refused;
  EXPECT_THAT(Text(refused), HasSubstr("save again"));
  EXPECT_EQ(disk_->files(), saved);
  EXPECT_TRUE(Save(*trainer).ok());
}

TEST_F(HalfLoad, WhatIsBeingLoadedIsNotSaved) {
  Train(3);
  auto trainer = Attach();
  ASSERT_TRUE(Save(*trainer).ok());
  services::CheckpointService& service = RuntimeOf(*trainer).checkpoints();
  const services::OwnerContents there = Must(service.Describe("owner0", {}).Wait());
  services::ExportItem item;
  item.value = there.values.at(0).id;
  item.optimizers = {there.optimizers.at(0).id};
  ASSERT_TRUE(service.Export("owner0", {item}, {}).Wait().ok());
  LoadOptions stopped = Loading(false);
  stopped.progress = [](const TransferProgress& progress) {
    return progress.activity != "loading";
  };
  ASSERT_FALSE(LoadModel(*trainer, stopped).ok());
  const absl::Status refused = service.Export("owner0", {item}, {}).Wait().status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << refused;
  EXPECT_THAT(Text(refused), HasSubstr("load of its optimizer has not finished"));
}

// During the load, a trainer that reaches only an owner that kept its part can still step there.
TEST_F(HalfLoad, APartThatStaysIsComparedAtTheEndOfTheLoadToo) {
  Train(3);
  auto first = Attach("first");
  ASSERT_TRUE(Save(*first).ok());
  Restart(1);
  auto trainer = Attach();
  const LoadOptions loading = LoadingWhileOwner0Steps(*trainer);
  const absl::Status refused = LoadModel(*trainer, loading).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << refused;
  EXPECT_THAT(Text(refused), HasSubstr("was at 3 steps, and is at 4"));
  EXPECT_FALSE(Create(*trainer).ok());
  EXPECT_THAT(Text(LoadModel(*trainer, Loading(true)).status()), HasSubstr("has taken 4 steps"));
  ASSERT_TRUE(LoadModel(*trainer, Loading(true, /*accept_skew=*/true)).ok());
  EXPECT_TRUE(Create(*trainer).ok());
}

// The load is stopped between giving the loaded part its life and giving it to the part that stays.
TEST_F(HalfLoad, ALoadThatStoppedAtItsEndIsNotBegunAfreshOver) {
  Train(3);
  auto first = Attach("first");
  ASSERT_TRUE(Save(*first).ok());
  Restart(1);
  auto trainer = Attach();
  const LoadOptions loading = LoadingWhileOwner0Steps(*trainer);
  ASSERT_FALSE(LoadModel(*trainer, loading).ok());
  JoinOptions afresh;
  afresh.start_afresh = true;
  for (const JoinOptions& join : {JoinOptions{}, afresh}) {
    const absl::Status refused = Create(*trainer, join).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << refused;
    EXPECT_THAT(Text(refused), HasSubstr("a load has not finished, owner1"));
    EXPECT_THAT(Text(refused), HasSubstr("--only-missing"));
  }
  ASSERT_TRUE(trainer->Drop("owner1", kName).ok());
  auto optimizer = Must(Create(*trainer, afresh));
  EXPECT_TRUE(Step(*trainer, *optimizer).status().ok());
}

// The second load takes the parts over, whatever the first one has left to do.
TEST_F(HalfLoad, OfTwoLoadsAtOnceOnlyTheLastBeginsALife) {
  Train(3);
  auto trainer = Attach(), other = Attach("other");
  ASSERT_TRUE(Save(*trainer).ok());
  worker::Runtime& runtime = RuntimeOf(*trainer);
  bool begun = false;
  LoadOptions overtaken = Loading(false);
  overtaken.progress = [&](const TransferProgress& progress) {
    if (progress.activity != "loading" || std::exchange(begun, true)) return true;
    EXPECT_TRUE(LoadModel(*other, Loading(false)).ok());
    auto optimizer = Must(Create(*other));
    Steps(*other, *optimizer, 1);  // of the second load's life
    return true;
  };
  const absl::Status refused = LoadModel(*trainer, overtaken).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << refused;
  EXPECT_THAT(Text(refused), HasSubstr("another load of the optimizer has begun"));
  EXPECT_EQ(Must(runtime.optimizer_service().Part("owner0", kName, {}).Wait()).steps, 4u);
  EXPECT_EQ(First(*trainer), First(*other));
  auto optimizer = Must(Create(*trainer));
  EXPECT_TRUE(Step(*trainer, *optimizer).status().ok());
}

TEST_F(HalfLoad, WhatIsMissingOnAnOwnerThatIsNotThereGoesNowhereElse) {
  Train(3);
  {
    auto first = Attach("first");
    ASSERT_TRUE(Save(*first).ok());
  }
  auto trainer = StartTrainer("trainer", {owners_[0]->address()});
  const absl::Status refused = LoadModel(*trainer, Loading(true)).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Text(refused), HasSubstr("owner1 of the save is not among the owners"));
  EXPECT_FALSE(trainer->Lookup("owner0", "w1").ok());
}

TEST_F(HalfLoad, AValueIsNotMadeAnewBesideOneThatIsStillStepped) {
  auto trainer = Attach();
  auto optimizer = Must(Create(*trainer));
  Steps(*trainer, *optimizer, 3);
  ASSERT_TRUE(Save(*trainer).ok());
  ASSERT_TRUE(trainer->Drop("owner0", "w0").ok());
  for (const bool only_missing : {true, false}) {
    const absl::Status refused = LoadModel(*trainer, Loading(only_missing)).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << refused;
    EXPECT_THAT(Text(refused), HasSubstr("drop the optimizer"));
    EXPECT_FALSE(trainer->Lookup("owner0", "w0").ok()) << "nothing was made";
  }
  ASSERT_TRUE(trainer->Drop("owner0", kName).ok());
  ASSERT_TRUE(LoadModel(*trainer, Loading(true)).ok());
  EXPECT_TRUE(Create(*trainer).ok());
}

}  // namespace
}  // namespace psd
