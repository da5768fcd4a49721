// The tables of kernels of CUDA devices and of emulated devices have the same names.

#include <algorithm>
#include <string>
#include <vector>

#include "core/base/kernel_table.h"
#include "core/device_kernels/cuda/operator_kernels.h"
#include "core/device_kernels/cuda/optim_kernels.h"
#include "core/device_kernels/cuda/row_kernels.h"
#include "core/device_kernels/emulated/operator_kernels.h"
#include "core/device_kernels/emulated/optim_kernels.h"
#include "core/device_kernels/emulated/row_kernels.h"
#include "core/optim/dense/optim_kernels.h"
#include "core/tensor/ops/kernels.h"
#include "gmock/gmock.h"

namespace psd {
namespace {

using ::testing::ElementsAreArray;
using ::testing::IsEmpty;

// A kernel of one table alone, and why the other has none.
struct Exception {
  std::string name, reason;
};
// None: the launchers and the twins of every kernel exist.
const std::vector<Exception> kOnlyCuda = {};
const std::vector<Exception> kOnlyEmulated = {};
const std::vector<Exception> kNotOnTheCpu = {
    {optim::kSumSquares.name, "the host calls kernels::SumOfSquares"}};

std::vector<std::string> Without(std::vector<std::string> names,
                                 const std::vector<Exception>& exceptions) {
  for (const Exception& each : exceptions) {
    const auto found = std::find(names.begin(), names.end(), each.name);
    EXPECT_TRUE(found != names.end()) << each.name << " is no exception any more";
    if (found != names.end()) names.erase(found);
    EXPECT_THAT(each.reason, ::testing::Not(IsEmpty()));
  }
  return names;
}

TEST(KernelNamesTest, GpusHaveTheOperatorsOfEmulatedDevices) {
  const std::vector<std::string> gpu = cuda::OperatorKernels().Names();
  EXPECT_THAT(Without(gpu, kOnlyCuda),
              ElementsAreArray(Without(emulated::OperatorKernels().Names(), kOnlyEmulated)));
  EXPECT_THAT(gpu, ElementsAreArray(ops::CpuKernels().Names()));
}

TEST(KernelNamesTest, GpusHaveAllDenseOptimizers) {
  const std::vector<std::string> gpu = cuda::OptimKernels().Names();
  EXPECT_THAT(gpu, ElementsAreArray(emulated::OptimKernels().Names()));
  EXPECT_THAT(Without(gpu, kNotOnTheCpu), ElementsAreArray(optim::CpuOptimKernels().Names()));
}

// The CPU has no such table.
TEST(KernelNamesTest, GpusHaveTheKernelsOfRowsOfEmulatedDevices) {
  const std::vector<std::string> gpu = cuda::RowKernels().Names();
  EXPECT_THAT(gpu, ::testing::Not(IsEmpty()));
  EXPECT_THAT(gpu, ElementsAreArray(emulated::RowKernels().Names()));
}

}  // namespace
}  // namespace psd
