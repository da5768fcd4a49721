// Steps whose gradients are on the device of their parameters. The tests run with several seeds,
// which decide in which order the device works.

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/change/change.h"
#include "core/change/changes.h"
#include "core/change/replay.h"
#include "core/device/emulated/emulated_device.h"
#include "core/optim/options/optimizer_config.h"
#include "core/optim/owner/hosted_optimizer.h"
#include "core/optim/owner/optimizer_change.h"
#include "core/optim/owner/owner_optimizer.h"
#include "core/optim/parameters/kept_tensor.h"
#include "core/optim/parameters/parameter_table.h"
#include "core/optim/steps/step_request.h"
#include "core/program/checked_program.h"
#include "core/runtime/runtime.h"
#include "core/store/store.h"
#include "core/tensor/dtype.h"
#include "core/tensor/ops/cast.h"
#include "core/tensor/ops/shape_ops.h"
#include "core/tensor/shape.h"
#include "core/tensor/tensor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/test_world.h"
#include "tests/core/change/memory_journal.h"
#include "tests/core/tensor/compare.h"
#include "tests/device/device_owner.h"
#include "tests/device/owner_steps.h"
#include "tests/device/stall.h"
#include "tests/device/test_device.h"

namespace psd {
namespace {

using optim::OwnerOptimizer;
using optim::ParameterGradient;
using optim::StepPlan;
using store::EntryPtr;
using ::testing::HasSubstr;

// ---- an owner

class DeviceGradientsTest : public OwnerStepsTest {
 protected:
  DeviceGradientsTest() : OwnerStepsTest(/*has_journal=*/false) {}

  Tensor There(const Tensor& tensor) { return *tensor.Clone(&device().memory()); }
  // Takes all memory of the device that is left.
  std::shared_ptr<Block> FillDevice() {
    return Must(device().memory().Allocate(device().budget_bytes() - device().used_bytes()));
  }
  static optim::OptimizerSettings TwoTrainers() {
    optim::OptimizerSettings settings;
    settings.mode.kind = optim::UpdateMode::Kind::kSynchronous;
    settings.mode.trainers = 2;
    return settings;
  }
  // Makes a step with this plan and waits for it.
  absl::Status StepBy(OwnerOptimizer& optimizer, StepPlan plan) {
    Answer answer;
    Step(optimizer, std::move(plan), answer, runtime().ids().Next());
    Await(answer);
    return answer.result.status();
  }
  static StepPlan PlanOf(OwnerOptimizer& optimizer, const EntryPtr& parameter, Tensor gradient) {
    return Must(optimizer.table().Plan({{parameter->id, std::move(gradient), 1}}));
  }
};

INSTANTIATE_TEST_SUITE_P(Seeds, DeviceGradientsTest, ::testing::Values(0, 1, 2));

TEST_P(DeviceGradientsTest, AStepReadsItWhereItIs) {
  const EntryPtr w = NewParameter("w", "emu:0", Full(5));
  const auto optimizer = NewOptimizer("main", {"sgd", {{"lr", 1}}}, {w});
  // A part of a larger tensor, which is aligned to its elements alone.
  const Tensor both = There(*Tensor::Full({13}, DType::kF32, 2));
  const Tensor gradient = *ops::Slice(both, 0, 7, 13);
  const size_t copies = device().copies_added();
  ASSERT_TRUE(StepBy(*optimizer, PlanOf(*optimizer, w, gradient)).ok());
  EXPECT_EQ(device().copies_added(), copies);
  ExpectElements(w, Full(3));
}

TEST_P(DeviceGradientsTest, ABorrowedGradientIsKeptUntilTheStepIsDone) {
  const EntryPtr w = NewParameter("w", "emu:0", Full(5));
  const auto optimizer = NewOptimizer("main", {"sgd", {{"lr", 1}}}, {w});
  auto owner = std::make_shared<Tensor>(There(Full(1)));
  const std::weak_ptr<Tensor> kept = owner;
  std::vector<ParameterGradient> gradients(1);
  gradients[0].parameter = w->id;
  gradients[0].gradient = optim::KeptTensor::Borrow(*owner);
  gradients[0].version = 1;
  StepPlan plan = Must(optimizer->table().Plan(std::move(gradients), std::move(owner)));
  Answer answer;
  {
    const testing::Stall stall(device());
    Step(*optimizer, std::move(plan), answer, runtime().ids().Next());
    while (w->parameter->version() == 1 && !answer.given) std::this_thread::yield();
    EXPECT_FALSE(answer.given);
    EXPECT_FALSE(kept.expired());
  }
  Await(answer);
  ASSERT_TRUE(answer.result.ok()) << answer.result.status();
  EXPECT_TRUE(kept.expired());
  ExpectElements(w, Full(4));
}

TEST_P(DeviceGradientsTest, AGradientThatIsNotContiguousStaysThere) {
  const EntryPtr w = NewParameter("w", "emu:0", Full(5));
  const auto optimizer = NewOptimizer("main", {"sgd", {{"lr", 1}}}, {w});
  const Tensor one = There(*Tensor::Full({1}, DType::kF32, 2));
  StepPlan plan = PlanOf(*optimizer, w, one.View(Shape{6}, {0}, 0));
  EXPECT_EQ(plan.gradients[0].gradient->device(), &device());
  ASSERT_TRUE(StepBy(*optimizer, std::move(plan)).ok());
  ExpectElements(w, Full(3));
}

TEST_P(DeviceGradientsTest, AGradientMayHaveNoElements) {
  const EntryPtr none = NewParameter("none", "emu:0", *Tensor::Zeros({0}, DType::kF32));
  const auto optimizer = NewOptimizer("main", {"sgd", {{"lr", 1}}}, {none});
  StepPlan plan = PlanOf(*optimizer, none, There(*Tensor::Zeros({0}, DType::kF32)));
  EXPECT_EQ(Must(optim::SumOfSquares(plan)), 0);
  EXPECT_TRUE(StepBy(*optimizer, std::move(plan)).ok());
}

TEST_P(DeviceGradientsTest, WhereThereIsNoRoomForSumsOfSquaresTheHostMakesThem) {
  const EntryPtr w = NewParameter("w", "emu:0", Full(5));
  const auto optimizer = NewOptimizer("main", {"sgd", {{"lr", 1}}}, {w});
  const StepPlan plan = PlanOf(*optimizer, w, There(Full(2)));
  const auto rest = FillDevice();
  EXPECT_EQ(Must(optim::SumOfSquares(plan)), 6 * 4.0);
}

TEST_P(DeviceGradientsTest, SumsAreMadeOnTheDevice) {
  const EntryPtr w = NewParameter("w", "emu:0", Full(5));
  const auto optimizer = NewOptimizer("main", {"sgd", {{"lr", 1}}}, {w});
  const optim::ParameterTable& table = optimizer->table();
  for (const bool first_is_there : {true, false}) {
    const Tensor one = first_is_there ? There(Full(1)) : Full(1);
    const Tensor other = first_is_there ? Full(0.5) : There(Full(0.5));
    StepPlan sum = Must(table.Sum(PlanOf(*optimizer, w, one), PlanOf(*optimizer, w, other)));
    EXPECT_EQ(sum.gradients[0].gradient->device(), &device());
    EXPECT_EQ(Must(optim::SumOfSquares(sum)), 6 * 1.5 * 1.5);
    ASSERT_TRUE(StepBy(*optimizer, std::move(sum)).ok());
  }
  ExpectElements(w, Full(2));
}

// The owner never writes to gradients that trainers have lent, so each sum needs new memory.
TEST_P(DeviceGradientsTest, WhereThereIsNoRoomForSumsTheHostMakesThem) {
  const auto half = [](float value) { return *ops::Cast(Full(value), DType::kF16); };
  const EntryPtr w = NewParameter("w", "emu:0", Full(5)), h = NewParameter("h", "emu:0", half(5));
  for (const EntryPtr& parameter : {w, h}) {
    const auto optimizer =
        NewOptimizer("o" + parameter->name, {"sgd", {{"lr", 1}}}, {parameter}, TwoTrainers());
    const optim::ParameterTable& table = optimizer->table();
    const auto value = [&](float each) { return parameter == w ? Full(each) : half(each); };
    for (const bool first_is_there : {true, false}) {
      StepPlan one = PlanOf(*optimizer, parameter, first_is_there ? There(value(1)) : value(1));
      StepPlan other = PlanOf(*optimizer, parameter, There(value(2)));
      const auto rest = FillDevice();
      StepPlan sum = Must(table.Sum(std::move(one), std::move(other)));
      ASSERT_TRUE(table.Round(sum).ok());
      ASSERT_TRUE(sum.gradients[0].gradient->OnHost());
      EXPECT_TRUE(ops::Equal(*sum.gradients[0].gradient, value(3)));
    }
    StepPlan sum = Must(table.Sum(PlanOf(*optimizer, parameter, There(value(1))),
                                  PlanOf(*optimizer, parameter, There(value(2)))));
    if (parameter == h) {
      const auto rest = FillDevice();
      ASSERT_TRUE(table.Round(sum).ok());
      EXPECT_TRUE(sum.gradients[0].gradient->OnHost());
    }
    EXPECT_TRUE(ops::Equal(*sum.gradients[0].gradient->ToHost(), value(3)));
  }
}

TEST_P(DeviceGradientsTest, ARoundIsSteppedIfThereIsNoRoomForItsSum) {
  const EntryPtr w = NewParameter("w", "emu:0", Full(5));
  const auto optimizer = NewOptimizer("main", {"sgd", {{"lr", 1}}}, {w}, TwoTrainers());
  StepPlan one = PlanOf(*optimizer, w, There(Full(1))),
           other = PlanOf(*optimizer, w, There(Full(3)));
  Answer first, second;
  Step(*optimizer, std::move(one), first, runtime().ids().Next());
  device().FailAllocation(1);
  Step(*optimizer, std::move(other), second, runtime().ids().Next(), {}, kTrainer + 1);
  Await(first);
  Await(second);
  ASSERT_TRUE(first.result.ok()) << first.result.status();
  ASSERT_TRUE(second.result.ok()) << second.result.status();
  ExpectElements(w, Full(3));  // by their mean
}

TEST_P(DeviceGradientsTest, SumsOfHalvesAreRoundedOnce) {
  const auto half = [](float value) { return *ops::Cast(Full(value), DType::kF16); };
  // Which of three gradients are on the host; the last time none.
  for (const std::vector<int>& on_host :
       std::vector<std::vector<int>>{{0}, {1}, {2}, {0, 1}, {0, 2}, {1, 2}, {}}) {
    const std::string number = absl::StrJoin(on_host, "_");
    const EntryPtr w = NewParameter(absl::StrCat("w", number), "emu:0", half(4));
    const auto optimizer = NewOptimizer(absl::StrCat("o", number), {"sgd", {{"lr", 1}}}, {w});
    const optim::ParameterTable& table = optimizer->table();
    StepPlan sum;
    // 1 + 2^-11 + 2^-11 is 1 if each sum is rounded.
    const float values[] = {1, 0x1p-11f, 0x1p-11f};
    for (int i = 0; i < 3; ++i) {
      Tensor gradient = half(values[i]);
      if (std::count(on_host.begin(), on_host.end(), i) == 0) gradient = There(gradient);
      StepPlan plan = PlanOf(*optimizer, w, std::move(gradient));
      sum = i == 0 ? std::move(plan) : Must(table.Sum(std::move(sum), std::move(plan)));
    }
    ASSERT_TRUE(table.Round(sum).ok());
    EXPECT_EQ(sum.gradients[0].gradient->device(), &device()) << number;
    const Tensor rounded = *sum.gradients[0].gradient->ToHost();
    EXPECT_TRUE(ops::Equal(rounded, half(1 + 0x1p-10f))) << number;
  }
}

TEST_P(DeviceGradientsTest, AGradientOfAnotherDeviceGoesThroughTheHost) {
  const EntryPtr w = NewParameter("w", "emu:0", Full(5)), b = NewParameter("b", "cpu", Full(5));
  const auto optimizer = NewOptimizer("main", {"sgd", {{"lr", 1}}}, {w, b});
  const auto others = testing::NewTestDevices(2, GetParam());
  const Tensor other = *Full(2).Clone(&others[1]->memory());
  StepPlan plan = Must(optimizer->table().Plan({{w->id, other, 1}, {b->id, There(Full(3)), 1}}));
  for (const ParameterGradient& each : plan.gradients) EXPECT_TRUE(each.gradient->OnHost());
  ASSERT_TRUE(StepBy(*optimizer, std::move(plan)).ok());
  ExpectElements(w, Full(3));
  ExpectElements(b, Full(2));
}

TEST_P(DeviceGradientsTest, NormsAreSumsOverDevicesAndTheHost) {
  const EntryPtr w = NewParameter("w", "emu:0", Full(5)), b = NewParameter("b", "cpu", Full(5)),
                 d = NewParameter("d", "emu:0", *Tensor::Full({6}, DType::kF64, 5));
  const auto optimizer = NewOptimizer("main", {"sgd", {{"lr", 1}}}, {w, b, d});
  const optim::ParameterTable& table = optimizer->table();
  const StepPlan plan = Must(table.Plan({{w->id, There(Full(1)), 1},
                                         {b->id, Full(2), 1},
                                         {d->id, There(*Tensor::Full({6}, DType::kF64, 3)), 1}}));
  EXPECT_EQ(Must(optim::SumOfSquares(plan)), 6 * (1.0 + 4.0 + 9.0));
  device().Lose("it fell off the bus");
  const absl::Status lost = optim::SumOfSquares(plan).status();
  EXPECT_EQ(lost.code(), absl::StatusCode::kUnavailable) << lost;
  EXPECT_THAT(std::string(lost.message()), HasSubstr("emu:0"));
}

TEST_P(DeviceGradientsTest, ARoundOfSeveralTrainersIsMeasuredAndSteppedThere) {
  const EntryPtr w = NewParameter("w", "emu:0", Full(5));
  const auto optimizer = NewOptimizer("main", {"sgd", {{"lr", 1}}}, {w}, TwoTrainers());
  Answer first, second;
  Step(*optimizer, PlanOf(*optimizer, w, There(Full(1))), first, runtime().ids().Next());
  Step(*optimizer, PlanOf(*optimizer, w, There(Full(3))), second, runtime().ids().Next(), {},
       kTrainer + 1);
  Await(first);
  Await(second);
  ASSERT_TRUE(first.result.ok()) << first.result.status();
  ASSERT_TRUE(second.result.ok()) << second.result.status();
  ExpectElements(w, Full(3));  // by their mean
}

TEST_P(DeviceGradientsTest, AStepOfAnyNumberOfParametersIsOneLaunch) {
  DeviceOwner host("large", testing::NewTestDevice(GetParam()));
  change::Changes& changes = host.owner().runtime().changes();
  std::vector<EntryPtr> parameters;
  std::vector<ParameterGradient> gradients;
  for (int i = 0; i < 202; ++i) {
    const Tensor elements = *Tensor::Full({i < 2 ? 300'000 : 3}, DType::kF32, 1);
    change::CreateValue creation{{},    absl::StrCat("w", i),   nullptr, elements,
                                 false, /*requires_grad=*/true, "emu:0"};
    parameters.push_back(Must(changes.Apply(std::move(creation)).Wait()));
    gradients.push_back({parameters.back()->id, *elements.Clone(&host.device().memory()), 1});
  }
  change::CreateOptimizer creation;
  creation.name = "main";
  creation.groups = {{{"sgd", {{"lr", 1}}}, parameters}};
  creation.life.id = host.owner().runtime().ids().Next();
  const auto optimizer =
      optim::OptimizerOf(*Must(changes.Apply(std::move(creation), nullptr).Wait()));
  StepPlan plan = Must(optimizer->table().Plan(std::move(gradients)));
  const size_t kernels = host.device().kernels_launched();
  ASSERT_TRUE(StepBy(*optimizer, std::move(plan)).ok());
  EXPECT_EQ(host.device().kernels_launched() - kernels, 1u);
  for (const EntryPtr& each : parameters)
    ExpectElements(each, *Tensor::Zeros(each->parameter->shape(), DType::kF32));
}

// ---- an owner with a journal, whose records have gradients on the host

class RecordedGradientsTest : public OwnerStepsTest {};

INSTANTIATE_TEST_SUITE_P(Seeds, RecordedGradientsTest, ::testing::Values(0, 1));

TEST_P(RecordedGradientsTest, AReplayGivesTheSameBits) {
  const EntryPtr w = NewParameter("w", "emu:0", Full(5));
  const auto optimizer = NewOptimizer("main", {"adam", {{"lr", 0.1}}}, {w});
  for (const float value : {1.0f, -0.3f}) {
    const Tensor gradient = *Full(value).Clone(&device().memory());
    Answer answer;
    Step(*optimizer, Must(optimizer->table().Plan({{w->id, gradient, 1}})), answer,
         runtime().ids().Next());
    Await(answer);
    ASSERT_TRUE(answer.result.ok()) << answer.result.status();
  }
  EXPECT_EQ(journal_->count<optim::StepChange>(), 2u);
  DeviceOwner again("again");
  worker::Runtime& replayed = again.owner().runtime();
  const program::ProgramLimits limits;
  const absl::Status status = change::ReplayAll(
      journal_->bytes(), {replayed.store(), replayed.changes(), replayed.operators(), limits});
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(change::TextOf(replayed.store()), change::TextOf(runtime().store()));
}

TEST_P(RecordedGradientsTest, AGradientThatCannotBeReadChangesNothing) {
  const EntryPtr w = NewParameter("w", "emu:0", Full(5));
  const auto optimizer = NewOptimizer("main", {"sgd", {{"lr", 1}}}, {w});
  StepPlan plan = Must(optimizer->table().Plan({{w->id, *Full(1).Clone(&device().memory()), 1}}));
  device().Lose("it fell off the bus");
  Answer answer;
  Step(*optimizer, std::move(plan), answer, runtime().ids().Next());
  Await(answer);
  ExpectLost(answer, "it fell off the bus");
  EXPECT_EQ(journal_->count<optim::StepChange>(), 0u);
  EXPECT_EQ(w->parameter->version(), 1u);
}

}  // namespace
}  // namespace psd
