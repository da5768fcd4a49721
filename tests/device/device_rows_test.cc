// Steps of tables of rows on an emulated device: its operations, faults and memory. The tests run
// with several seeds, which decide in which order the device works.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "core/base/buffer.h"
#include "core/base/device.h"
#include "core/base/kernel_table.h"
#include "core/base/stream.h"
#include "core/change/change.h"
#include "core/change/changes.h"
#include "core/device/emulated/emulated_device.h"
#include "core/device_kernels/emulated/operator_kernels.h"
#include "core/device_kernels/emulated/row_kernels.h"
#include "core/optim/functional/optimizer_spec.h"
#include "core/optim/owner/owner_optimizer.h"
#include "core/optim/rows/row_kernels.h"
#include "core/optim/steps/step_request.h"
#include "core/runtime/runtime.h"
#include "core/store/store.h"
#include "core/tensor/dtype.h"
#include "core/tensor/tensor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/test_world.h"
#include "tests/device/device_owner.h"
#include "tests/device/owner_steps.h"
#include "tests/device/row_steps.h"
#include "tests/device/stall.h"

namespace psd {
namespace {

using optim::OptimizerSpec;
using optim::OwnerOptimizer;
using optim::ParameterGradient;
using optim::StepPlan;
using optim::StepTerms;
using store::EntryPtr;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::Stall;

// Optimizers with the operations of a step and the allocations for each of its tables.
struct FailingCase {
  OptimizerSpec spec;
  int operations, allocations;
};
std::vector<FailingCase> FailingCases() {
  return {{{"adagrad", {{"lr", 0.1}}}, 7, 3},
          {{"sparse_adam", {{"lr", 0.1}}}, 7, 3},
          {{"sgd", {{"lr", 0.1}}}, 7, 3},
          // The host groups for this one.
          {{"sgd", {{"lr", 0.1}, {"momentum", 0.9}}}, 2, 1}};
}

class DeviceRowsTest : public RowSteps<OwnerStepsTest> {
 protected:
  // Waits until a step has been added to the stalled device.
  static void AwaitUnderWay(const EntryPtr& table, const Answer& answer) {
    while (RowsOf(table).version() == 1 && !answer.given) std::this_thread::yield();
    EXPECT_FALSE(answer.given) << answer.result.status();
  }
};

INSTANTIATE_TEST_SUITE_P(Seeds, DeviceRowsTest, ::testing::Values(0, 1, 2));

// No row is copied to the host: the device groups the entries with five kernels, and steps the rows
// with one. The host groups only for optimizers that also move rows without a gradient.
TEST_P(DeviceRowsTest, AStepIsOfTheDevicesKernels) {
  const OptimizerSpec momentum{"sgd", {{"lr", 0.1}, {"momentum", 0.9}}};
  const EntryPtr table = NewTableThere("table"), moving = NewTableThere("moving");
  const auto optimizer = NewOptimizer("main", adagrad_, {table});
  const auto mover = NewOptimizer("mover", momentum, {moving});
  const auto kernels_of = [&](OwnerOptimizer& stepped, const EntryPtr& rows,
                              const std::vector<int64_t>& ids) {
    const size_t before = device().kernels_launched();
    EXPECT_TRUE(Step(stepped, {GradientOf(rows, ids, 3)}).ok());
    return device().kernels_launched() - before;
  };
  EXPECT_EQ(kernels_of(*optimizer, table, {5, 2, 5}), 6u);
  EXPECT_EQ(kernels_of(*optimizer, table, {}), 0u);
  EXPECT_EQ(kernels_of(*mover, moving, {}), 0u);
  EXPECT_EQ(kernels_of(*mover, moving, {5, 2, 5}), 1u);
  EXPECT_EQ(kernels_of(*mover, moving, {}), 1u);
  EXPECT_TRUE(AllPinnedMemoryIsFree());
}

// No thread waits for the device, also not those of the steps behind the first one.
TEST_P(DeviceRowsTest, StepsAreAcknowledgedWhenTheDeviceHasDoneThem) {
  const OptimizerSpec momentum{"sgd", {{"lr", 0.1}, {"momentum", 0.9}}};
  for (const OptimizerSpec& spec : {adagrad_, momentum}) {
    Restart();
    const size_t recorded = journal_->count<optim::StepChange>();
    const EntryPtr there = NewTableThere("there"), here = NewTableHere("here");
    const auto on_device = NewOptimizer("on_device", spec, {there});
    const auto on_cpu = NewOptimizer("on_cpu", spec, {here});
    const std::vector<std::vector<int64_t>> ids = {{1, 2, 1}, {2, 3}, {3, 5, 2}};
    std::vector<Answer> answers(ids.size());
    {
      const Stall stall(device());
      for (size_t i = 0; i < ids.size(); ++i) {
        ParameterGradient gradient = GradientOf(there, ids[i], 3);
        gradient.version = 1;
        OwnerStepsTest::Step(*on_device, Must(on_device->table().Plan({std::move(gradient)})),
                             answers[i], runtime().ids().Next());
      }
      while (RowsOf(there).version() < 1 + ids.size()) std::this_thread::yield();
      EXPECT_EQ(on_device->stats().steps, 0u);
      EXPECT_EQ(journal_->count<optim::StepChange>(), recorded);
      for (const Answer& each : answers) EXPECT_FALSE(each.given);
    }
    for (size_t i = 0; i < ids.size(); ++i) {
      Await(answers[i]);
      const optim::StepResult result = Must(std::move(answers[i].result));
      EXPECT_EQ(result.steps_accepted, i + 1);
      EXPECT_EQ(result.max_staleness, i);
      ASSERT_TRUE(Step(*on_cpu, {GradientOf(here, ids[i], 3)}).ok());
    }
    ExpectSame(Contents(*on_device, there), Contents(*on_cpu, here), DType::kF32, true);
    EXPECT_TRUE(AllPinnedMemoryIsFree());
  }
}

TEST_P(DeviceRowsTest, AStepMayHaveDenseParametersOnTheSameDevice) {
  const EntryPtr far_table = NewTableThere("far_table"),
                 far = NewParameter("far", "emu:0", Full(5));
  const EntryPtr near_table = NewTableHere("near_table"),
                 near = NewParameter("near", "cpu", Full(5));
  const auto on_device = NewOptimizer("on_device", adagrad_, {far_table, far});
  const auto on_cpu = NewOptimizer("on_cpu", adagrad_, {near_table, near});
  const auto plan = [](const OwnerOptimizer& optimizer, const EntryPtr& table,
                       const EntryPtr& dense) {
    return Must(optimizer.table().Plan({GradientOf(table, {4, 9, 4}, 3), {dense->id, Full(2), 1}}));
  };
  Answer answer;
  {
    const Stall stall(device());
    OwnerStepsTest::Step(*on_device, plan(*on_device, far_table, far), answer,
                         runtime().ids().Next());
    AwaitUnderWay(far_table, answer);
    while (far->parameter->version() == 1 && !answer.given) std::this_thread::yield();
    EXPECT_FALSE(answer.given);
  }
  Await(answer);
  EXPECT_EQ(Must(std::move(answer.result)).parameters_stepped, 2);
  ASSERT_TRUE(Step(*on_cpu, plan(*on_cpu, near_table, near)).ok());
  ExpectSame(Contents(*on_device, far_table), Contents(*on_cpu, near_table), DType::kF32, true);
  const Tensor want = Must(near->parameter->Pin()).tensor;
  const Tensor got = *Must(far->parameter->Pin()).tensor.ToHost();
  const auto text = [](const Tensor& tensor) {
    return std::string(reinterpret_cast<const char*>(tensor.raw_data()), tensor.NumBytes());
  };
  ExpectSame(text(got), text(want), DType::kF32, true);
}

TEST_P(DeviceRowsTest, AStepMayHaveParametersOfTheHost) {
  const EntryPtr table = NewTableThere("table"), near_table = NewTableHere("near_table");
  const EntryPtr dense = NewParameter("dense", "cpu", Full(5));
  const OptimizerSpec sgd{"sgd", {{"lr", 1}}};
  const auto optimizer = NewOptimizer("main", sgd, {table, dense});
  const auto on_cpu = NewOptimizer("on_cpu", sgd, {near_table});
  const auto gradients = [&] {
    return std::vector<ParameterGradient>{GradientOf(table, {4, 9, 4}, 3), {dense->id, Full(2), 1}};
  };
  ASSERT_TRUE(Step(*optimizer, gradients()).ok());
  ASSERT_TRUE(Step(*on_cpu, {GradientOf(near_table, {4, 9, 4}, 3)}).ok());
  ExpectSame(Contents(*optimizer, table), Contents(*on_cpu, near_table), DType::kF32, true);
  ExpectElements(dense, Full(3));
  device().FailOperation(2);
  const absl::Status lost = Step(*optimizer, gradients());
  EXPECT_EQ(lost.code(), absl::StatusCode::kUnavailable) << lost;
  ExpectElements(dense, Full(3));
  EXPECT_EQ(optimizer->stats().steps, 1u);
}

// Each of its operations fails in turn: the copy of the gradient, and the kernels.
TEST_P(DeviceRowsTest, AStepThatFailsOnTheDeviceIsNeitherAnsweredNorDescribed) {
  for (const FailingCase& each : FailingCases()) {
    SCOPED_TRACE(each.spec.type);
    int operation = 1;
    for (;; ++operation) {
      Restart();
      const EntryPtr table = NewTableThere("table");
      const auto optimizer = NewOptimizer("main", each.spec, {table});
      const size_t described = journal_->count<optim::StepChange>();
      device().FailOperation(operation);
      Answer answer;
      OwnerStepsTest::Step(*optimizer,
                           Must(optimizer->table().Plan({GradientOf(table, {1, 1}, 3)})), answer,
                           runtime().ids().Next());
      Await(answer);
      if (answer.result.ok()) break;
      ExpectLost(answer, "");
      EXPECT_EQ(optimizer->stats().steps, 0u);
      EXPECT_EQ(journal_->count<optim::StepChange>(), described);
      EXPECT_TRUE(AllPinnedMemoryIsFree());
      const absl::Status again = Step(*optimizer, {GradientOf(table, {1}, 3)});
      EXPECT_EQ(again.code(), absl::StatusCode::kUnavailable) << again;
    }
    EXPECT_EQ(operation, each.operations + 1);
  }
}

// Each of the allocations for its two tables fails in turn.
TEST_P(DeviceRowsTest, AStepThatFindsNoMemoryChangesNothing) {
  for (const FailingCase& each : FailingCases()) {
    SCOPED_TRACE(each.spec.type);
    Restart();
    const EntryPtr far = NewTableThere("far", 1), far2 = NewTableThere("far2", 2);
    const EntryPtr near = NewTableHere("near", 1), near2 = NewTableHere("near2", 2);
    const auto on_device = NewOptimizer("on_device", each.spec, {far, far2});
    const auto on_cpu = NewOptimizer("on_cpu", each.spec, {near, near2});
    const size_t described = journal_->count<optim::StepChange>();
    const auto gradients = [](const EntryPtr& a, const EntryPtr& b) {
      return std::vector<ParameterGradient>{GradientOf(a, {1, 5, 1}, 3), GradientOf(b, {2}, 4)};
    };
    const auto contents = [&] { return Contents(*on_device, far) + Contents(*on_device, far2); };
    const std::string before = contents();
    int allocation = 1;
    for (;; ++allocation) {
      device().FailAllocation(allocation);
      const absl::Status stepped = Step(*on_device, gradients(far, far2));
      device().FailAllocation(0);
      if (stepped.ok()) break;
      EXPECT_EQ(stepped.code(), absl::StatusCode::kResourceExhausted) << stepped;
      EXPECT_THAT(std::string(stepped.message()), HasSubstr("emu:0"));
      EXPECT_EQ(contents(), before);
      for (size_t i = 0; i < 2; ++i) EXPECT_EQ(on_device->table()[i].steps(), 0);
      EXPECT_EQ(journal_->count<optim::StepChange>(), described);
    }
    EXPECT_EQ(allocation, 2 * each.allocations + 1);
    ASSERT_TRUE(Step(*on_cpu, gradients(near, near2)).ok());
    EXPECT_EQ(on_device->stats().steps, 1u);
    ExpectSame(contents(), Contents(*on_cpu, near) + Contents(*on_cpu, near2), DType::kF32, true);
  }
}

TEST_P(DeviceRowsTest, ATableWithoutMemoryForItsStepKeepsDenseParametersToo) {
  const EntryPtr table = NewTableThere("table");
  const EntryPtr dense = NewParameter("dense", "emu:0", Full(5));
  const auto optimizer = NewOptimizer("main", adagrad_, {table, dense});
  const auto gradients = [&] {
    return std::vector<ParameterGradient>{GradientOf(table, {1, 5, 1}, 3), {dense->id, Full(2), 1}};
  };
  device().FailAllocation(3);
  const absl::Status refused = Step(*optimizer, gradients());
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted) << refused;
  ExpectElements(dense, Full(5));
  for (size_t i = 0; i < 2; ++i) EXPECT_EQ(optimizer->table()[i].steps(), 0);
  ASSERT_TRUE(Step(*optimizer, gradients()).ok());
  EXPECT_EQ(dense->parameter->version(), 2u);
}

// The ids, the values and the scratch are as many as the entries, but the groups that the device
// finds are not more than the rows.
TEST_P(DeviceRowsTest, RepeatedIdsNeedNoMemoryForGroups) {
  constexpr size_t kEntries = 3000, kOfEach = 64;
  const EntryPtr there = NewTableThere("there"), here = NewTableHere("here");
  const auto on_device = NewOptimizer("on_device", adagrad_, {there});
  const auto on_cpu = NewOptimizer("on_cpu", adagrad_, {here});
  std::vector<int64_t> ids(kEntries);
  for (size_t i = 0; i < kEntries; ++i) ids[i] = static_cast<int64_t>(i * 7 % kRows);
  constexpr size_t kValues = kEntries * 3 * sizeof(float), kIds = kEntries * sizeof(int64_t),
                   kPositions = kEntries * sizeof(uint32_t), kScratch = kIds + kPositions,
                   kGroups = kRows * (sizeof(int64_t) + sizeof(uint32_t));
  const size_t room =
      kValues + kIds + kPositions + kScratch + kGroups + 8 * kOfEach;  // each array is aligned
  const auto rest =
      Must(device().memory().Allocate(device().budget_bytes() - device().used_bytes() - room));
  const absl::Status stepped = Step(*on_device, {GradientOf(there, ids, 3)});
  ASSERT_TRUE(stepped.ok()) << stepped;
  ASSERT_TRUE(Step(*on_cpu, {GradientOf(here, ids, 3)}).ok());
  ExpectSame(Contents(*on_device, there), Contents(*on_cpu, here), DType::kF32, true);
}

TEST_P(DeviceRowsTest, AStepLeavesNoMemoryBehind) {
  const EntryPtr table = NewTableThere("table");
  const auto optimizer = NewOptimizer("main", adagrad_, {table});
  const size_t used = device().used_bytes();
  ASSERT_TRUE(Step(*optimizer, {GradientOf(table, {1, 2, 1}, 3)}).ok());
  EXPECT_EQ(device().used_bytes(), used);
}

// As a GPU that has no memory left when it is asked.
absl::StatusOr<size_t> RefuseScratch(Stream* stream, size_t /*size*/, size_t /*rows*/) {
  return absl::ResourceExhaustedError("no memory on " + stream->device().name());
}

TEST_P(DeviceRowsTest, ADeviceThatCannotTellTheScratchIsNotLost) {
  const KernelTable rows = emulated::RowKernels();
  EmulatedDeviceOptions options;
  options.seed = GetParam();
  options.kernels = emulated::OperatorKernels();
  options.kernels.Add(optim::kAdagradRows, rows.Find(optim::kAdagradRows));
  options.kernels.Add(optim::kGroupRows, rows.Find(optim::kGroupRows));
  options.kernels.Add(optim::kGroupRowsScratch, RefuseScratch);
  host_.reset();
  host_ = std::make_unique<DeviceOwner>("owner", Must(EmulatedDevice::Create(1, options))[0],
                                        Options());
  const EntryPtr table = NewTableThere("table");
  const auto optimizer = NewOptimizer("main", adagrad_, {table});
  const std::string before = Contents(*optimizer, table);
  const absl::Status refused = Step(*optimizer, {GradientOf(table, {1, 5, 1}, 3)});
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("no memory on emu:0"));
  EXPECT_TRUE(device().health().ok());
  EXPECT_EQ(Contents(*optimizer, table), before);
  EXPECT_EQ(optimizer->table()[0].steps(), 0);
}

TEST(DeviceWithoutRowKernelsTest, ItsTablesHaveNoOptimizer) {
  EmulatedDeviceOptions device;
  device.kernels = emulated::OperatorKernels();
  worker::RuntimeOptions options;
  options.devices.push_back(Must(EmulatedDevice::Create(1, device))[0]);
  TestOwner owner("owner", options);
  change::Changes& changes = owner.runtime().changes();
  const EntryPtr table = Must(
      changes
          .Apply(change::CreateValue{
              {}, "table", nullptr, RandomElements({12, 3}, DType::kF32, 1), true, true, "emu:0"})
          .Wait());
  for (const char* type : {"sgd", "adagrad", "rowwise_adagrad", "sparse_adam"}) {
    change::CreateOptimizer creation;
    creation.name = type;
    creation.groups = {{{type, {{"lr", 1}}}, {table}}};
    const absl::Status refused = changes.Apply(std::move(creation), nullptr).Wait().status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kUnimplemented) << refused;
    EXPECT_THAT(std::string(refused.message()),
                AllOf(HasSubstr(type), HasSubstr("table"), HasSubstr("emu:0")));
  }
}

}  // namespace
}  // namespace psd
