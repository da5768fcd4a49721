// Steps of tables of rows on a device: those of the same tables on the CPU. The tests run with
// several seeds, which decide in which order an emulated device works.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/device.h"
#include "core/optim/functional/optimizer_spec.h"
#include "core/optim/owner/owner_optimizer.h"
#include "core/optim/parameters/parameter_table.h"
#include "core/optim/steps/step_request.h"
#include "core/store/store.h"
#include "core/tensor/dtype.h"
#include "core/tensor/sparse_tensor.h"
#include "core/tensor/tensor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/test_world.h"
#include "tests/device/device_under_test.h"
#include "tests/device/owner_steps.h"
#include "tests/device/owner_under_test.h"
#include "tests/device/row_steps.h"

namespace psd {
namespace {

using optim::OptimizerSpec;
using optim::OwnerOptimizer;
using optim::ParameterGradient;
using optim::StepPlan;
using optim::StepTerms;
using store::EntryPtr;
using ::testing::HasSubstr;

// All optimizers of rows. `exact`: with the CPU's bits.
struct RowCase {
  OptimizerSpec spec;
  bool exact = true;
};
std::vector<RowCase> RowCases() {
  return {{{"sgd", {{"lr", 0.1}}}},
          {{"sgd", {{"lr", 0.1}, {"momentum", 0.9}, {"dampening", 0.3}}}},
          {{"sgd", {{"lr", 0.1}, {"momentum", 0.5}, {"nesterov", 1}, {"maximize", 1}}}},
          {{"adagrad", {{"lr", 0.1}}}},
          {{"adagrad",
            {{"lr", 0.1}, {"lr_decay", 0.5}, {"eps", 0.1}, {"initial_accumulator_value", 0.25}}}},
          {{"sparse_adam", {{"lr", 0.1}}}},
          {{"sparse_adam", {{"lr", 0.1}, {"beta1", 0.5}, {"maximize", 1}}}},
          {{"rowwise_adagrad", {{"lr", 0.1}, {"lr_decay", 0.1}, {"maximize", 1}}}, false}};
}

class RowsOnDeviceTest : public RowSteps<testing::OnDevice<OwnerSteps<OwnerUnderTest>>> {};

INSTANTIATE_TEST_SUITE_P(Orders, RowsOnDeviceTest, ::testing::Values(0, 1, 2));

TEST_P(RowsOnDeviceTest, EachOptimizerEqualsTheCpus) {
  const std::vector<std::vector<int64_t>> steps = {
      {7, 0, 7, 3, 7, 3}, {}, {11, 11}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 0, 0, 11}, {4}};
  StepTerms scaled, limited;
  scaled.gradient_scale = 0.5;
  limited.gradient_scale = 2, limited.gradient_limit = 0.25;
  const std::vector<StepTerms> terms = {{}, scaled, limited, {}, limited};
  unsigned number = 0;
  for (const RowCase& each : RowCases()) {
    for (const DType dtype : {DType::kF32, DType::kF64}) {
      for (const int64_t width : {1, 5, 33}) {
        const std::string name = absl::StrCat(++number, "/", each.spec.type, "/", width);
        SCOPED_TRACE(name);
        const Tensor elements = RandomElements({kRows, width}, dtype, number);
        const EntryPtr there = NewTable("there" + name, testing::NameOfDevice(), elements);
        const EntryPtr here = NewTable("here" + name, "cpu", elements);
        const auto on_device = NewOptimizer("on_device" + name, each.spec, {there});
        const auto on_cpu = NewOptimizer("on_cpu" + name, each.spec, {here});
        for (size_t i = 0; i < steps.size(); ++i) {
          SCOPED_TRACE(absl::StrCat("step ", i));
          const auto seed = static_cast<unsigned>(100 + i);
          const absl::Status stepped =
              Step(*on_device, {GradientOf(there, steps[i], seed)}, terms[i]);
          ASSERT_TRUE(stepped.ok()) << stepped;
          ASSERT_TRUE(Step(*on_cpu, {GradientOf(here, steps[i], seed)}, terms[i]).ok());
          ExpectSame(Contents(*on_device, there), Contents(*on_cpu, here), dtype, each.exact);
          EXPECT_EQ(on_device->table()[0].steps(), static_cast<int64_t>(i) + 1);
          EXPECT_EQ(RowsOf(there).version(), i + 2);
        }
      }
    }
  }
}

TEST_P(RowsOnDeviceTest, SumsOfGradientsAndTheirNormsEqualTheCpus) {
  const EntryPtr there = NewTableThere("there"), here = NewTableHere("here");
  const auto on_device = NewOptimizer("on_device", adagrad_, {there});
  const auto on_cpu = NewOptimizer("on_cpu", adagrad_, {here});
  const auto sum = [](const OwnerOptimizer& optimizer, const EntryPtr& table) {
    const optim::ParameterTable& parameters = optimizer.table();
    return Must(parameters.Sum(Must(parameters.Plan({GradientOf(table, {7, 0, 7}, 3)})),
                               Must(parameters.Plan({GradientOf(table, {1, 7}, 4)}))));
  };
  StepPlan far = sum(*on_device, there), near = sum(*on_cpu, here);
  const double squares = Must(optim::SumOfSquares(near));
  EXPECT_GT(squares, 0);
  EXPECT_EQ(Must(optim::SumOfSquares(far)), squares);
  ASSERT_TRUE(Step(*on_device, std::move(far)).ok());
  ASSERT_TRUE(Step(*on_cpu, std::move(near)).ok());
  ExpectSame(Contents(*on_device, there), Contents(*on_cpu, here), DType::kF32, true);
}

TEST_P(RowsOnDeviceTest, IdsOutOfRangeAreRefusedBeforeAnythingChanges) {
  const EntryPtr table = NewTableThere("table"),
                 larger = NewTable("larger", testing::NameOfDevice(),
                                   RandomElements({kRows + 1, 3}, DType::kF32, 1));
  const auto optimizer = NewOptimizer("main", adagrad_, {table});
  const std::string before = Contents(*optimizer, table);
  const std::optional<size_t> kernels = testing::KernelsGiven(device());
  for (const int64_t id : {int64_t{-1}, kRows}) {
    const absl::Status refused =
        SparseTensor::Create(RowsOf(table).shape(), Tensor::Of<int64_t>({1, 2}, {0, id}),
                             RandomElements({2, 3}, DType::kF32, 1))
            .status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr(absl::StrCat(id)));
  }
  ParameterGradient gradient = GradientOf(larger, {0, kRows}, 3);
  gradient.parameter = table->id;
  const absl::Status refused = optimizer->table().Plan({gradient}).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("another shape"));
  EXPECT_EQ(testing::KernelsGiven(device()), kernels);
  EXPECT_EQ(Contents(*optimizer, table), before);
}

// The copies of the gradient then wait for the device.
TEST_P(RowsOnDeviceTest, AStepNeedsNoPinnedMemory) {
  const OptimizerSpec momentum{"sgd", {{"lr", 0.1}, {"momentum", 0.9}}};
  for (const OptimizerSpec& spec : {adagrad_, momentum}) {
    Restart();
    const EntryPtr there = NewTableThere("there"), here = NewTableHere("here");
    const auto on_device = NewOptimizer("on_device", spec, {there});
    const auto on_cpu = NewOptimizer("on_cpu", spec, {here});
    const size_t pinned_bytes = testing::DeviceUnderTestOptions().pinned_bytes;
    auto all = device().pinned_memory().Allocate(pinned_bytes);
    for (; !all.ok(); all = device().pinned_memory().Allocate(pinned_bytes))
      std::this_thread::yield();
    ASSERT_TRUE(Step(*on_device, {GradientOf(there, {4, 9, 4}, 3)}).ok());
    ASSERT_TRUE(Step(*on_cpu, {GradientOf(here, {4, 9, 4}, 3)}).ok());
    ExpectSame(Contents(*on_device, there), Contents(*on_cpu, here), DType::kF32, true);
  }
}

}  // namespace
}  // namespace psd
