// The kernels of rows of GPUs, run on an emulated device or on a GPU (kernel_device.h), against the
// CPU's.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <type_traits>
#include <vector>

#include "core/base/device.h"
#include "core/base/kernel_table.h"
#include "core/base/stream.h"
#include "core/optim/rows/row_kernels.h"
#include "gtest/gtest.h"
#include "kernels/optim/arrays.h"
#include "kernels/rows/device_rows.h"
#include "kernels/rows/rows.h"
#include "kernels/rows/rows_optim.h"
#include "tests/core/device_kernels/device_memory.h"
#include "tests/core/device_kernels/kernel_device.h"
#include "tests/kernels/cpu_fuses.h"

namespace psd {
namespace {

using kernels::DeviceRowBatch;
using kernels::DeviceRowGroups;
using kernels::OptimType;
using kernels::RowAdagradOptions;
using kernels::RowBatch;
using kernels::RowGroups;
using kernels::RowSgdOptions;
using kernels::SparseAdamOptions;
using testing::CpuFuses;
using testing::DeviceCopy;
using testing::KernelsLaunched;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr size_t kTableRows = 40;

template <typename T>
constexpr OptimType kType = std::is_same_v<T, double> ? OptimType::kF64 : OptimType::kF32;

// Adds the kernel called `name` to the device's default stream.
template <typename Signature, typename... Arguments>
auto RunKernel(Device& device, const KernelName<Signature>& name, const Arguments&... arguments) {
  return device.kernels().Find(name)(&device.default_stream(), arguments...);
}

// Groups on the device, with `room` for them, whose memory has other numbers at first.
class Groups {
 public:
  Groups(Device& device, size_t size, size_t room)
      : ids_(device, std::vector<int64_t>(room, -7)),
        begins_(device, std::vector<uint32_t>(room + 1, 99)),
        positions_(device, std::vector<uint32_t>(size, 99)),
        count_(device, {99}),
        room_(room),
        size_(size) {}
  // A copy of `groups`.
  Groups(Device& device, const RowGroups& groups)
      : ids_(device, groups.ids),
        begins_(device, groups.begins),
        positions_(device, groups.positions),
        count_(device, {static_cast<uint32_t>(groups.ids.size())}),
        room_(groups.ids.size()),
        size_(groups.positions.size()) {}

  DeviceRowGroups arrays() const {
    return {room_, size_, ids_.data(), begins_.data(), positions_.data(), count_.data()};
  }
  RowGroups Read() const {
    RowGroups groups{ids_.Read(), begins_.Read(), positions_.Read()};
    groups.ids.resize(count_.Read()[0]);
    groups.begins.resize(groups.ids.size() + 1);
    return groups;
  }

 private:
  DeviceCopy<int64_t> ids_;
  DeviceCopy<uint32_t> begins_, positions_, count_;
  size_t room_, size_;
};

std::vector<int64_t> Ids(size_t count, int64_t below, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<int64_t> ids(count);
  for (int64_t& id : ids) id = static_cast<int64_t>(random()) % below;
  return ids;
}

// Dyadic numbers of few bits if `exact`, so that sums of their squares are exact.
template <typename T>
std::vector<T> Numbers(size_t count, bool exact, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<T> all(count);
  for (T& x : all)
    x = exact ? static_cast<T>(static_cast<int>(random() % 17) - 8) / 4
              : static_cast<T>(static_cast<double>(random() % 20001) / 10000 - 1);
  return all;
}

// The elements differ by at most `ulps` units in the last place of the wanted one, or of 1 if that
// is larger.
template <typename T>
void ExpectNear(const std::vector<T>& got, const std::vector<T>& want, double ulps,
                const char* what) {
  ASSERT_EQ(got.size(), want.size());
  const double tolerance = ulps * std::numeric_limits<T>::epsilon();
  for (size_t i = 0; i < want.size(); ++i) {
    const double a = static_cast<double>(got[i]), b = static_cast<double>(want[i]);
    if (std::isnan(b)) {
      ASSERT_TRUE(std::isnan(a)) << what << " at " << i << ": " << a;
    } else if (ulps == 0 || std::isinf(b)) {
      ASSERT_EQ(std::memcmp(&got[i], &want[i], sizeof(T)), 0)
          << what << " at " << i << ": " << a << ", want " << b;
    } else {
      ASSERT_NEAR(a, b, tolerance * std::max(1.0, std::abs(b))) << what << " at " << i;
    }
  }
}

// A table and a gradient for it, on the host.
template <typename T>
struct Table {
  Table(size_t row_width, bool exact)
      : width(row_width),
        elements(Numbers<T>(kTableRows * width, exact, 1)),
        gradients(Numbers<T>(50 * width, exact, 2)) {
    const std::vector<int64_t> ids = Ids(50, kTableRows - 1, 3);
    kernels::GroupRows(ids.data(), ids.size(), &groups);
    // A row without a gradient.
    groups.ids.push_back(kTableRows - 1);
    groups.begins.push_back(groups.begins.back());
    if (!exact) {
      const double odd[] = {std::nan(""), kInfinity, -kInfinity, -0.0, 1e-40};
      for (size_t i = 0; i < 5 && 9 * i + 2 < gradients.size(); ++i)
        gradients[9 * i + 2] = static_cast<T>(odd[i]);
    }
    for (auto& each : state) each.assign(elements.size(), T{0.125});
  }

  size_t width;
  std::vector<T> elements, gradients;
  std::vector<T> state[2];
  RowGroups groups;
};

struct StepRun {
  int64_t step = 1;
  double scale = 1;
  double limit = kInfinity;
};

// kernel(step, batch, state) is one of the CPU's.
template <typename T, typename Kernel>
void StepOnCpu(const Kernel& kernel, const StepRun& run, Table<T>& table) {
  std::vector<T> next(table.groups.ids.size() * table.width);
  RowBatch<T> batch;
  batch.table = table.elements.data();
  batch.stride = batch.width = table.width;
  batch.ids = table.groups.ids.data();
  batch.begins = table.groups.begins.data();
  batch.count = table.groups.ids.size();
  batch.positions = table.groups.positions.data();
  batch.gradients = table.gradients.data();
  batch.next = next.data();
  batch.gradient_scale = run.scale;
  batch.gradient_limit = run.limit;
  kernel(run.step, batch, table.state);
  for (size_t k = 0; k < batch.count; ++k)
    std::copy_n(next.begin() + static_cast<ptrdiff_t>(k * table.width), table.width,
                table.elements.begin() +
                    static_cast<ptrdiff_t>(static_cast<size_t>(batch.ids[k]) * table.width));
}

// A kernel of a device, its options, and how many arrays of state it has.
template <typename Options>
struct DeviceKernel {
  const optim::StepRowsName<Options>& name;
  Options options;
  size_t states;
};

template <typename T, typename Options>
void StepOnDevice(Device& device, const DeviceKernel<Options>& kernel, const StepRun& run,
                  Table<T>& table) {
  const DeviceCopy<T> elements(device, table.elements), gradients(device, table.gradients);
  const DeviceCopy<T> first(device, table.state[0]), second(device, table.state[1]);
  const Groups groups(device, table.groups);
  DeviceRowBatch batch;
  batch.type = kType<T>;
  batch.table = elements.data();
  batch.rows = kTableRows;
  batch.width = table.width;
  batch.groups = groups.arrays();
  batch.gradients = gradients.data();
  if (kernel.states > 0) batch.state[0] = first.data();
  if (kernel.states > 1) batch.state[1] = second.data();
  batch.gradient_scale = run.scale;
  batch.gradient_limit = run.limit;
  const size_t before = KernelsLaunched(device);
  RunKernel(device, kernel.name, kernel.options, run.step, batch);
  EXPECT_LE(KernelsLaunched(device), before + 1);
  table.elements = elements.Read();
  table.state[0] = first.Read();
  table.state[1] = second.Read();
}

class DeviceRowTest : public testing::KernelDeviceTest {
 protected:
  DeviceRowTest() : KernelDeviceTest(testing::DeviceRowKernels()) {}

  template <typename T, typename Options, typename OnCpu>
  void CompareAs(const DeviceKernel<Options>& on_device, const OnCpu& on_cpu, bool exact,
                 double ulps) {
    for (const size_t width : {1, 3, 16, 33, 300}) {
      Table<T> got(width, exact), want(width, exact);
      for (const StepRun& run :
           {StepRun{1, 1, kInfinity}, StepRun{2, 0.5, 0.25}, StepRun{3, 2, kInfinity}}) {
        SCOPED_TRACE(::testing::Message() << "width " << width << ", step " << run.step);
        StepOnDevice(*device_, on_device, run, got);
        StepOnCpu(on_cpu, run, want);
        ExpectNear(got.elements, want.elements, ulps, "table");
        ExpectNear(got.state[0], want.state[0], ulps, "state 0");
        ExpectNear(got.state[1], want.state[1], ulps, "state 1");
      }
    }
  }
  // Where the CPU does not fuse, each fused operation makes a difference of a rounding.
  template <typename Options, typename OnCpu>
  void Compare(const DeviceKernel<Options>& on_device, const OnCpu& on_cpu) {
    const double ulps = CpuFuses() ? 0 : 64;
    CompareAs<float>(on_device, on_cpu, false, ulps);
    CompareAs<double>(on_device, on_cpu, false, ulps);
  }
};

INSTANTIATE_TEST_SUITE_P(Seeds, DeviceRowTest, ::testing::Values(0, 1, 2));

// ---- groups

TEST_P(DeviceRowTest, GroupsAreThoseOfTheCpu) {
  std::vector<std::vector<int64_t>> all = {{}, {5}, {3, 3, 3}, {0, 1, 2, 3}, {9, 8, 7, 7, 0}};
  all.push_back(Ids(1000, 40, 1));
  all.push_back(Ids(300, int64_t{1} << 30, 2));
  all.push_back({int64_t{1} << 62, 0, int64_t{1} << 62});
  for (const std::vector<int64_t>& ids : all) {
    SCOPED_TRACE(::testing::Message() << ids.size() << " ids");
    RowGroups want;
    kernels::GroupRows(ids.data(), ids.size(), &want);
    const DeviceCopy<int64_t> there(*device_, ids);
    // There is room for the groups and no more, and for more groups than ids.
    for (const size_t room : {want.ids.size(), ids.size() + 3}) {
      const Groups got(*device_, ids.size(), room);
      const size_t rows = size_t{1} << 63;
      const size_t bytes = RunKernel(*device_, optim::kGroupRowsScratch, ids.size(), rows).value();
      const DeviceCopy<uint64_t> scratch(*device_, std::vector<uint64_t>(bytes / 8 + 1, ~0u));
      RunKernel(*device_, optim::kGroupRows, there.data(), rows, got.arrays(), scratch.bytes());
      const RowGroups read = got.Read();
      EXPECT_EQ(read.ids, want.ids);
      EXPECT_EQ(read.begins, want.begins);
      EXPECT_EQ(read.positions, want.positions);
    }
  }
}

// ---- sums

template <typename T>
void CompareSums(Device& device) {
  for (const size_t width : {1, 5, 64, 100}) {
    const std::vector<int64_t> ids = Ids(200, 30, 4);
    const std::vector<T> rows = Numbers<T>(ids.size() * width, false, 5);
    RowGroups groups;
    kernels::GroupRows(ids.data(), ids.size(), &groups);
    std::vector<T> want(groups.ids.size() * width);
    kernels::SumRows(groups, rows.data(), width, width, want.data());
    const Groups there(device, groups);
    const DeviceCopy<T> rows_there(device, rows), out(device, std::vector<T>(want.size(), 99));
    RunKernel(device, optim::kSumRows, kType<T>, there.arrays(), rows_there.data(), width,
              out.data());
    ExpectNear(out.Read(), want, 0, "sum");
  }
}

TEST_P(DeviceRowTest, SumsOfEqualIdsHaveTheBitsOfTheCpu) {
  CompareSums<float>(*device_);
  CompareSums<double>(*device_);
}

// The host does not know how many groups the device finds, so there is room for more.
TEST_P(DeviceRowTest, RowsBehindTheLastGroupStay) {
  const DeviceCopy<int64_t> ids(*device_, {2, 0, 2});
  const Groups groups(*device_, 3, 3);
  const size_t bytes = RunKernel(*device_, optim::kGroupRowsScratch, size_t{3}, size_t{3}).value();
  const DeviceCopy<uint64_t> scratch(*device_, std::vector<uint64_t>(bytes / 8 + 1));
  RunKernel(*device_, optim::kGroupRows, ids.data(), 3, groups.arrays(), scratch.bytes());
  const DeviceCopy<float> rows(*device_, {1, 2, 10, 20, 100, 200});
  const DeviceCopy<float> out(*device_, std::vector<float>(6, -1));
  RunKernel(*device_, optim::kSumRows, OptimType::kF32, groups.arrays(), rows.data(), 2,
            out.data());
  EXPECT_EQ(out.Read(), (std::vector<float>{10, 20, 101, 202, -1, -1}));

  const DeviceCopy<float> table(*device_, {5, 5, 6, 6, 7, 7});
  DeviceRowBatch batch;
  batch.table = table.data();
  batch.rows = 3;
  batch.width = 2;
  batch.groups = groups.arrays();
  batch.gradients = rows.data();
  RowSgdOptions options;
  options.lr = 1;
  RunKernel(*device_, optim::kSgdRows, options, 1, batch);
  EXPECT_EQ(table.Read(), (std::vector<float>{-5, -15, 6, 6, -94, -195}));

  const DeviceCopy<float> sums(*device_, {0, 0, 0});
  batch.state[0] = sums.data();
  RunKernel(*device_, optim::kRowwiseAdagradRows, RowAdagradOptions{}, 1, batch);
  EXPECT_EQ(sums.Read(), (std::vector<float>{250, 0, (101.0f * 101 + 202 * 202) / 2}));
}

// ---- optimizers

TEST_P(DeviceRowTest, SgdHasTheBitsOfTheCpu) {
  std::vector<RowSgdOptions> variants(4);
  variants[1].momentum = 0.9, variants[1].dampening = 0.3;
  variants[2].momentum = 0.9, variants[2].nesterov = true;
  variants[3].maximize = true, variants[3].momentum = 1, variants[3].lr = 0.3;
  for (const RowSgdOptions& options : variants) {
    SCOPED_TRACE(::testing::Message() << "momentum " << options.momentum);
    const size_t states = options.momentum == 0 ? 0 : 1;
    Compare(DeviceKernel<RowSgdOptions>{optim::kSgdRows, options, states},
            [&](int64_t step, const auto& batch, auto& state) {
              kernels::SgdRows(options, step, batch, states == 0 ? nullptr : state[0].data());
            });
  }
}

TEST_P(DeviceRowTest, AdagradHasTheBitsOfTheCpu) {
  std::vector<RowAdagradOptions> variants(2);
  variants[1].lr_decay = 0.5, variants[1].eps = 0.1, variants[1].maximize = true;
  for (const RowAdagradOptions& options : variants)
    Compare(DeviceKernel<RowAdagradOptions>{optim::kAdagradRows, options, 1},
            [&](int64_t step, const auto& batch, auto& state) {
              kernels::AdagradRows(options, step, batch, state[0].data());
            });
}

TEST_P(DeviceRowTest, SparseAdamHasTheBitsOfTheCpu) {
  std::vector<SparseAdamOptions> variants(2);
  variants[1].lr = 0.1, variants[1].beta1 = 0.5, variants[1].beta2 = 0.7;
  variants[1].eps = 0.01, variants[1].maximize = true;
  for (const SparseAdamOptions& options : variants)
    Compare(DeviceKernel<SparseAdamOptions>{optim::kSparseAdamRows, options, 2},
            [&](int64_t step, const auto& batch, auto& state) {
              kernels::SparseAdamRows(options, step, batch, state[0].data(), state[1].data());
            });
}

// Sums of squares have another order than the CPU's, so they are near, and equal where they are
// exact.
TEST_P(DeviceRowTest, RowwiseAdagradHasTheBitsOfTheCpuWhereSumsAreExact) {
  std::vector<RowAdagradOptions> variants(2);
  variants[1].lr_decay = 0.5, variants[1].eps = 0.1, variants[1].maximize = true;
  for (const RowAdagradOptions& options : variants) {
    const DeviceKernel<RowAdagradOptions> on_device{optim::kRowwiseAdagradRows, options, 1};
    const auto on_cpu = [&](int64_t step, const auto& batch, auto& state) {
      kernels::RowwiseAdagradRows(options, step, batch, state[0].data());
    };
    CompareAs<float>(on_device, on_cpu, true, CpuFuses() ? 0 : 8);
    CompareAs<double>(on_device, on_cpu, true, CpuFuses() ? 0 : 8);
    CompareAs<float>(on_device, on_cpu, false, 8);
    CompareAs<double>(on_device, on_cpu, false, 8);
  }
}

TEST_P(DeviceRowTest, NoRowsLaunchNothing) {
  const size_t before = KernelsLaunched(*device_);
  DeviceRowBatch none;
  none.width = 4;
  RunKernel(*device_, optim::kSgdRows, RowSgdOptions{}, 1, none);
  RunKernel(*device_, optim::kSparseAdamRows, SparseAdamOptions{}, 1, none);
  RunKernel(*device_, optim::kRowwiseAdagradRows, RowAdagradOptions{}, 1, none);
  RunKernel(*device_, optim::kSumRows, OptimType::kF32, none.groups, nullptr, 4, nullptr);
  EXPECT_EQ(KernelsLaunched(*device_), before);
}

}  // namespace
}  // namespace psd
