// Links the launchers of all kernels for GPUs. What they compute is tested on emulated devices.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cuda/operators.h"
#include "kernels/cuda/operators_launch.h"
#include "kernels/cuda/optim_launch.h"
#include "kernels/cuda/rows_launch.h"
#include "kernels/elementwise.h"
#include "kernels/optim/adadelta.h"
#include "kernels/optim/adagrad.h"
#include "kernels/optim/adam.h"
#include "kernels/optim/adamax.h"
#include "kernels/optim/arrays.h"
#include "kernels/optim/rmsprop.h"
#include "kernels/optim/rprop.h"
#include "kernels/optim/sgd.h"
#include "kernels/rows/device_rows.h"
#include "kernels/rows/rows_optim.h"

namespace psd::kernels::cuda {
namespace {

// A batch without elements needs no GPU.
template <typename Options>
void ExpectNothingToDo() {
  OptimArrays none;
  OptimBatch batch;
  batch.arrays = &none;
  batch.count = 1;
  for (const OptimType type :
       {OptimType::kF32, OptimType::kF64, OptimType::kF16, OptimType::kBF16}) {
    batch.type = type;
    EXPECT_EQ(LaunchStep(Options(), batch, nullptr, nullptr), 0);
  }
}

TEST(LaunchTest, EveryOptimizerHasALauncher) {
  ExpectNothingToDo<SgdOptions>();
  ExpectNothingToDo<AdagradOptions>();
  ExpectNothingToDo<AdamOptions>();
  ExpectNothingToDo<AdamaxOptions>();
  ExpectNothingToDo<AdadeltaOptions>();
  ExpectNothingToDo<RmsPropOptions>();
  ExpectNothingToDo<RpropOptions>();
}

TEST(LaunchTest, EveryOperatorHasALauncher) {
  const int64_t none[] = {0}, one[] = {1};
  const StridedPlaces nowhere(none, one, 1);
  for (const BinaryOp op : {BinaryOp::kAdd, BinaryOp::kSub, BinaryOp::kMul, BinaryOp::kDiv}) {
    EXPECT_EQ(
        LaunchBinary(op, NumberType::kF32, nullptr, nowhere, nullptr, nowhere, nullptr, nullptr),
        0);
  }
  for (const UnaryOp op : {UnaryOp::kNeg, UnaryOp::kRelu, UnaryOp::kSigmoid, UnaryOp::kTanh,
                           UnaryOp::kExp, UnaryOp::kLog, UnaryOp::kSqrt}) {
    EXPECT_EQ(LaunchUnary(op, NumberType::kF64, nullptr, nullptr, 0, nullptr), 0);
  }
  for (const UnaryGradientOp op : {UnaryGradientOp::kRelu, UnaryGradientOp::kSigmoid,
                                   UnaryGradientOp::kTanh, UnaryGradientOp::kSqrt}) {
    EXPECT_EQ(LaunchUnaryGradient(op, NumberType::kF32, nullptr, nullptr, nullptr, 0, nullptr), 0);
  }
  for (const Reduction reduction : {Reduction::kSum, Reduction::kMax, Reduction::kArgMax}) {
    EXPECT_EQ(LaunchReduction(reduction, NumberType::kI32, nullptr, {0, 1, 1}, nullptr, nullptr),
              0);
  }
  EXPECT_EQ(LaunchCast(NumberType::kBool, nullptr, NumberType::kBF16, nullptr, 0, nullptr), 0);
  EXPECT_EQ(LaunchStridedCopy(nullptr, nowhere, 4, nullptr, nullptr), 0);
  EXPECT_EQ(LaunchGatherRows(nullptr, 4, nullptr, 0, nullptr, nullptr), 0);
  EXPECT_EQ(LaunchScatterRows(nullptr, 4, nullptr, 0, nullptr, nullptr), 0);
  for (const auto launch : {LaunchSoftmax, LaunchLogSoftmax})
    EXPECT_EQ(launch(NumberType::kF32, nullptr, 0, 3, nullptr, nullptr), 0);
  for (const auto launch : {LaunchSoftmaxGradient, LaunchLogSoftmaxGradient})
    EXPECT_EQ(launch(NumberType::kF64, nullptr, nullptr, 0, 3, nullptr, nullptr), 0);
  // LaunchCrossEntropy has a result even without rows, so it is not called without a GPU.
  EXPECT_EQ(LaunchCrossEntropyGradient(NumberType::kF32, nullptr, nullptr, nullptr, 0, 3, nullptr,
                                       nullptr),
            0);
  EXPECT_EQ(LaunchUniform(NumberType::kF32, 1, 0, 1, nullptr, 0, nullptr), 0);
  EXPECT_EQ(LaunchNormal(NumberType::kF32, 1, 0, 1, nullptr, 0, nullptr), 0);
}

TEST(LaunchTest, EveryRowOptimizerHasALauncher) {
  DeviceRowBatch none;
  none.width = 4;
  for (const OptimType type : {OptimType::kF32, OptimType::kF64}) {
    none.type = type;
    EXPECT_EQ(LaunchStepRows(RowSgdOptions(), 1, none, nullptr), 0);
    EXPECT_EQ(LaunchStepRows(RowAdagradOptions(), 1, none, nullptr), 0);
    EXPECT_EQ(LaunchStepRows(SparseAdamOptions(), 1, none, nullptr), 0);
    EXPECT_EQ(LaunchStepRowwise(RowAdagradOptions(), 1, none, nullptr), 0);
    EXPECT_EQ(LaunchSumRows(type, none.groups, nullptr, 4, nullptr, nullptr), 0);
  }
}

// Without a GPU there is an error, because CUB asks for it. The other parts are known all the same.
TEST(LaunchTest, GroupsNeedScratchForIdsAndPositions) {
  size_t bytes = 0;
  static_cast<void>(GetGroupRowsScratch(1000, 50, bytes));
  EXPECT_GE(bytes, 1000 * (sizeof(int64_t) + sizeof(uint32_t)));
}

TEST(LaunchTest, TooManyElementsForOneLaunchAreRefused) {
  OptimArrays vast;
  vast.size = size_t{1} << 45;
  OptimBatch batch;
  batch.arrays = &vast;
  batch.count = 1;
  EXPECT_NE(LaunchStep(SgdOptions(), batch, nullptr, nullptr), 0);
  EXPECT_NE(LaunchSumSquares(batch, nullptr, nullptr, nullptr), 0);
}

TEST(LaunchTest, ATableHasAnEntryForEachArray) {
  OptimArrays arrays[2];
  arrays[0].size = 5;
  arrays[1].size = 2000;
  OptimBatch batch;
  batch.arrays = arrays;
  batch.count = 1;
  const size_t bytes = OptimTableBytes(batch);
  batch.count = 2;
  ASSERT_EQ(OptimTableBytes(batch), 2 * bytes);
  constexpr uint64_t kGuard = 0x5555555555555555;
  std::vector<uint64_t> table(2 * bytes / sizeof(uint64_t) + 1, kGuard);
  FillOptimTable(batch, table.data());
  EXPECT_NE(table[0], kGuard);
  EXPECT_NE(table[2 * bytes / sizeof(uint64_t) - 1], kGuard);
  EXPECT_EQ(table.back(), kGuard);
}

}  // namespace
}  // namespace psd::kernels::cuda
