// The operators of GPUs, run on an emulated device or on a GPU (kernel_device.h), against the
// CPU's.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/device.h"
#include "core/base/stream.h"
#include "core/tensor/dtype.h"
#include "core/tensor/ops/cast.h"
#include "core/tensor/ops/elementwise.h"
#include "core/tensor/ops/gather.h"
#include "core/tensor/ops/kernels.h"
#include "core/tensor/ops/loss.h"
#include "core/tensor/ops/reduce.h"
#include "core/tensor/ops/shape_ops.h"
#include "core/tensor/tensor.h"
#include "gtest/gtest.h"
#include "tests/core/device_kernels/device_memory.h"
#include "tests/core/device_kernels/kernel_device.h"
#include "tests/kernels/on_every_target.h"

namespace psd {
namespace {

using testing::DeviceCopy;

class DeviceOperatorTest : public testing::KernelDeviceTest {
 protected:
  DeviceOperatorTest() : KernelDeviceTest(testing::DeviceOperators()) {}

  Tensor There(const Tensor& x) { return x.Clone(&device_->memory()).value(); }
};

INSTANTIATE_TEST_SUITE_P(Seeds, DeviceOperatorTest, ::testing::Values(0, 1, 2));

// Numbers of all magnitudes, and the special ones. Integers are in [-100, 100].
Tensor Numbers(DType dtype, const Shape& shape, unsigned seed = 1) {
  std::mt19937 random(seed);
  std::vector<double> all(static_cast<size_t>(shape.NumElements()));
  for (double& each : all)
    each = (static_cast<double>(random() % 20001) - 10000) / (random() % 2 == 0 ? 100 : 1000);
  if (dtype == DType::kF32 || dtype == DType::kF64) {
    const double infinity = std::numeric_limits<double>::infinity();
    const double odd[] = {std::nan(""), infinity, -infinity, 0, -0.0, 1e-40, 1e30};
    for (size_t i = 0; i < std::size(odd) && 5 * i + 2 < all.size(); ++i) all[5 * i + 2] = odd[i];
  }
  return *ops::Cast(Tensor::Of<double>(shape, std::move(all)), dtype);
}

bool IsHalf(DType dtype) {
  return dtype == DType::kF16 || dtype == DType::kBF16;
}

// How many numbers of the type lie between the two: 0 for equal bits, and for two NaNs.
template <typename T, typename Bits>
double Ulps(T a, T b) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) == std::isnan(b) ? 0 : INFINITY;
  if (a == b) return 0;
  if (std::isinf(a) || std::isinf(b)) return INFINITY;
  // In integers, because a double does not tell neighbours of f64 apart.
  const auto place = [](T x) {
    Bits bits;
    std::memcpy(&bits, &x, sizeof(x));
    return static_cast<int64_t>(bits < 0 ? std::numeric_limits<Bits>::min() - bits : bits);
  };
  const auto [low, high] = std::minmax({place(a), place(b)});
  return static_cast<double>(static_cast<uint64_t>(high) - static_cast<uint64_t>(low));
}

// The two have the same shape and dtype, and elements that differ by at most `ulps`. Where one has
// a NaN, the other has one, whose bits may differ.
void ExpectNear(const absl::StatusOr<Tensor>& there, const absl::StatusOr<Tensor>& here,
                double ulps, const std::string& what) {
  ASSERT_TRUE(there.ok()) << what << ": " << there.status();
  ASSERT_TRUE(here.ok()) << what << ": " << here.status();
  EXPECT_FALSE(there->OnHost()) << what;
  Tensor got = *there->ToHost().value().Contiguous();
  Tensor want = *here->Contiguous();
  ASSERT_EQ(got.dtype(), want.dtype()) << what;
  ASSERT_EQ(got.shape(), want.shape()) << what;
  if (IsHalf(want.dtype())) {
    got = *ops::Cast(got, DType::kF32);
    want = *ops::Cast(want, DType::kF32);
  }
  const auto count = static_cast<size_t>(want.NumElements());
  for (size_t i = 0; i < count; ++i) {
    double distance = 0;
    if (want.dtype() == DType::kF32) {
      distance = Ulps<float, int32_t>(got.data<float>()[i], want.data<float>()[i]);
    } else if (want.dtype() == DType::kF64) {
      distance = Ulps<double, int64_t>(got.data<double>()[i], want.data<double>()[i]);
    } else {
      const size_t bytes = ItemSize(want.dtype());
      distance = std::memcmp(static_cast<const std::byte*>(got.raw_data()) + i * bytes,
                             static_cast<const std::byte*>(want.raw_data()) + i * bytes, bytes);
    }
    ASSERT_LE(std::abs(distance), ulps) << what << " at " << i << " of " << count;
  }
}

const Shape kShapes[] = {{0}, {1}, {7}, {3, 0}, {5, 33}, {2, 3, 65}};

TEST_P(DeviceOperatorTest, ArithmeticHasTheBitsOfTheCpu) {
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kI32, DType::kI64}) {
    for (const Shape& shape : kShapes) {
      const Tensor a = Numbers(dtype, shape), b = Numbers(dtype, shape, 2);
      ExpectNear(ops::Add(There(a), There(b)), ops::Add(a, b), 0, "Add");
      ExpectNear(ops::Sub(There(a), There(b)), ops::Sub(a, b), 0, "Sub");
      ExpectNear(ops::Mul(There(a), There(b)), ops::Mul(a, b), 0, "Mul");
      ExpectNear(ops::Neg(There(a)), ops::Neg(a), 0, "Neg");
      if (dtype == DType::kI32 || dtype == DType::kI64) continue;
      ExpectNear(ops::Div(There(a), There(b)), ops::Div(a, b), 0, "Div");
      ExpectNear(ops::Relu(There(a)), ops::Relu(a), 0, "Relu");
      ExpectNear(ops::Sqrt(There(a)), ops::Sqrt(a), 0, "Sqrt");
      ExpectNear(ops::ReluGradient(There(a), There(b)), ops::ReluGradient(a, b), 0, "ReluGradient");
      ExpectNear(ops::SqrtGradient(There(a), There(b)), ops::SqrtGradient(a, b), 0, "SqrtGradient");
    }
  }
}

TEST_P(DeviceOperatorTest, BroadcastAndStridedOperandsHaveTheBitsOfTheCpu) {
  const Tensor a = Numbers(DType::kF32, {4, 1, 33}), b = Numbers(DType::kF32, {5, 1}, 2);
  ExpectNear(ops::Add(There(a), There(b)), ops::Add(a, b), 0, "[4, 1, 33] + [5, 1]");
  ExpectNear(ops::Mul(There(b), There(a)), ops::Mul(b, a), 0, "[5, 1] * [4, 1, 33]");
  const Tensor matrix = Numbers(DType::kF32, {6, 9});
  const auto turned = [](const Tensor& x) { return *ops::Transpose(x, 0, 1); };
  ExpectNear(ops::Sub(turned(There(matrix)), turned(There(matrix))),
             ops::Sub(turned(matrix), turned(matrix)), 0, "transposed");
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kF16, DType::kU8}) {
    const Tensor x = Numbers(dtype, {6, 9});
    ExpectNear(turned(There(x)).Contiguous(&device_->memory()), turned(x).Contiguous(), 0,
               "StridedCopy");
  }
}

// The libraries' functions are not rounded correctly. 4 ulps are what the CPU's kernels and those
// of the host's library differ by.
TEST_P(DeviceOperatorTest, FunctionsAreWithinFourUlpsOfTheCpu) {
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    for (const Shape& shape : kShapes) {
      const Tensor x = Numbers(dtype, shape);
      ExpectNear(ops::Exp(There(x)), ops::Exp(x), 4, "Exp");
      ExpectNear(ops::Log(There(x)), ops::Log(x), 4, "Log");
      ExpectNear(ops::Tanh(There(x)), ops::Tanh(x), 4, "Tanh");
      ExpectNear(ops::Sigmoid(There(x)), ops::Sigmoid(x), 4, "Sigmoid");
    }
  }
}

// A compiler may fuse the CPU's multiplication and subtraction, so these are compared where the
// difference does not cancel out.
TEST_P(DeviceOperatorTest, GradientsOfFunctionsAreWithinTwoUlpsOfTheCpu) {
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    const Tensor y = *Tensor::Full({100}, dtype, 0.3), g = Numbers(dtype, {100});
    ExpectNear(ops::SigmoidGradient(There(y), There(g)), ops::SigmoidGradient(y, g), 2,
               "SigmoidGradient");
    ExpectNear(ops::TanhGradient(There(y), There(g)), ops::TanhGradient(y, g), 2, "TanhGradient");
  }
}

TEST_P(DeviceOperatorTest, CastsHaveTheBitsOfTheCpu) {
  const DType all[] = {DType::kF32, DType::kF64,  DType::kI64, DType::kI32,
                       DType::kU8,  DType::kBool, DType::kF16, DType::kBF16};
  for (const DType from : all) {
    for (const DType to : all) {
      if (from == to) continue;
      const Tensor x = Numbers(from, {77});
      ExpectNear(ops::Cast(There(x), to), ops::Cast(x, to), 0,
                 std::string(DTypeName(from)) + " to " + std::string(DTypeName(to)));
    }
  }
}

TEST_P(DeviceOperatorTest, MaximaHaveTheBitsOfTheCpuAndSumsAreNear) {
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kI32, DType::kI64}) {
    const Tensor x = Numbers(dtype, {3, 50, 5});
    const Tensor whole = *Tensor::Full({3, 50, 5}, dtype, 7);
    for (const int axis : {0, 1, 2}) {
      ExpectNear(ops::Max(There(x), axis), ops::Max(x, axis), 0, "Max");
      ExpectNear(ops::ArgMax(There(x), axis), ops::ArgMax(x, axis), 0, "ArgMax");
      ExpectNear(ops::Sum(There(whole), axis), ops::Sum(whole, axis), 0, "Sum of sevens");
    }
    ExpectNear(ops::Sum(There(x)), ops::Sum(x), 0, "Sum with NaN");
  }
  // All terms are positive, so the CPU's sum in f32 is off by a few roundings only.
  const Tensor positive = *ops::Exp(*ops::Relu(*Tensor::Full({1000}, DType::kF32, 0.1)));
  ExpectNear(ops::Sum(There(positive)), ops::Sum(positive), 16, "Sum");
  const Tensor none = *Tensor::Zeros({0, 3}, DType::kF32);
  ExpectNear(ops::Sum(There(none), 0), ops::Sum(none, 0), 0, "Sum of nothing");
}

TEST_P(DeviceOperatorTest, RowsAreGatheredAndScattered) {
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kF16, DType::kU8}) {
    for (const int64_t width : {0, 1, 3, 64}) {
      const Tensor table = Numbers(dtype, {9, width});
      const Tensor ids = Tensor::Of<int64_t>({4}, {8, 0, 3, 8});
      ExpectNear(ops::GatherRows(There(table), There(ids)), ops::GatherRows(table, ids), 0,
                 "GatherRows");
    }
  }
  const DeviceCopy<float> table(*device_, {0, 1, 2, 3, 4, 5});
  const DeviceCopy<int64_t> ids(*device_, {2, 0});
  const DeviceCopy<float> rows(*device_, {10, 11, 12, 13});
  device_->kernels().Find(ops::kScatterRows)(&device_->default_stream(), table.bytes(),
                                             2 * sizeof(float), ids.data(), 2, rows.bytes());
  EXPECT_EQ(table.Read(), (std::vector<float>{12, 13, 2, 3, 10, 11}));
}

// Copies rows of `row_bytes` bytes whose table and whose packed rows start at odd places of their
// blocks.
void CopySkewedRows(Device& device, size_t row_bytes, size_t table_skew, size_t rows_skew) {
  SCOPED_TRACE(::testing::Message()
               << row_bytes << " bytes, skewed by " << table_skew << " and " << rows_skew);
  std::vector<uint8_t> table(9 * row_bytes), zeros(4 * row_bytes);
  for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<uint8_t>(i * 7 + 1);
  const std::vector<int64_t> ids = {8, 0, 3, 5};
  const DeviceCopy<int64_t> ids_there(device, ids);
  const DeviceCopy<uint8_t> table_there(device, table, table_skew);
  const DeviceCopy<uint8_t> rows(device, zeros, rows_skew);
  device.kernels().Find(ops::kGatherRows)(&device.default_stream(), table_there.bytes(), row_bytes,
                                          ids_there.data(), ids.size(), rows.bytes());
  std::vector<uint8_t> want;
  for (const int64_t id : ids) {
    const auto first = table.begin() + id * static_cast<ptrdiff_t>(row_bytes);
    want.insert(want.end(), first, first + static_cast<ptrdiff_t>(row_bytes));
  }
  EXPECT_EQ(rows.Read(), want);
  const DeviceCopy<uint8_t> copy(device, std::vector<uint8_t>(table.size()), table_skew);
  device.kernels().Find(ops::kScatterRows)(&device.default_stream(), copy.bytes(), row_bytes,
                                           ids_there.data(), ids.size(), rows.bytes());
  std::vector<uint8_t> scattered(table.size());
  for (size_t k = 0; k < ids.size(); ++k)
    std::copy_n(want.begin() + static_cast<ptrdiff_t>(k * row_bytes), row_bytes,
                scattered.begin() + ids[k] * static_cast<ptrdiff_t>(row_bytes));
  EXPECT_EQ(copy.Read(), scattered);
}

// An item that is too wide for an address would be refused, which ends the process.
TEST_P(DeviceOperatorTest, RowsAreCopiedInItemsThatFitTheirAddresses) {
  for (const size_t row_bytes : {8, 12, 6, 5}) {
    for (const size_t table_skew : {0, 1, 2, 4, 6}) {
      for (const size_t rows_skew : {0, 1, 2, 4})
        CopySkewedRows(*device_, row_bytes, table_skew, rows_skew);
    }
  }
}

template <typename T>
void CompareRandom(Device& device, const ops::RandomName& name, DType dtype, double first,
                   double second) {
  for (const size_t count : {0, 1, 2, 5, 1001}) {
    std::vector<T> want(count);
    ops::CpuKernels().Find(name)(nullptr, dtype, 17, first, second,
                                 reinterpret_cast<std::byte*>(want.data()), count);
    const DeviceCopy<T> got(device, std::vector<T>(count, -1));
    device.kernels().Find(name)(&device.default_stream(), dtype, 17, first, second, got.bytes(),
                                count);
    const std::vector<T> read = got.Read();
    ASSERT_TRUE(count == 0 || std::memcmp(read.data(), want.data(), count * sizeof(T)) == 0)
        << name.name << " of " << count;
  }
}

TEST_P(DeviceOperatorTest, RandomNumbersHaveTheBitsOfTheCpu) {
  CompareRandom<float>(*device_, ops::kUniform, DType::kF32, -1, 3);
  CompareRandom<double>(*device_, ops::kUniform, DType::kF64, 0, 1e-3);
  CompareRandom<float>(*device_, ops::kNormal, DType::kF32, 0, 1);
  CompareRandom<double>(*device_, ops::kNormal, DType::kF64, 5, 0.1);
}

// ---- softmax and its relatives. kernels/cuda/softmax.h says how far they are from the CPU's.

// Every number of columns that has another share of threads per row, and rows of several blocks.
const Shape kRowShapes[] = {{1, 1},   {700, 1}, {5, 2},   {3, 10},  {33, 16},  {300, 17},
                            {9, 128}, {3, 129}, {3, 255}, {4, 256}, {2, 1000}, {2, 3, 30}};

Tensor Logits(DType dtype, const Shape& shape, unsigned seed = 3) {
  std::mt19937 random(seed);
  std::vector<double> all(static_cast<size_t>(shape.NumElements()));
  for (double& each : all) each = static_cast<double>(random() % 20001) / 1000 - 10;
  return *ops::Cast(Tensor::Of<double>(shape, std::move(all)), dtype);
}

std::vector<double> Doubles(const Tensor& x) {
  const Tensor wide = *ops::Cast(x.ToHost().value(), DType::kF64);
  return {wide.data<double>(), wide.data<double>() + wide.NumElements()};
}

// As ExpectNear, for finite elements and with the unit in the last place of units[i] for element i.
void ExpectNearIn(const std::vector<double>& units, const absl::StatusOr<Tensor>& there,
                  const absl::StatusOr<Tensor>& here, double ulps, const std::string& what) {
  ASSERT_TRUE(there.ok()) << what << ": " << there.status();
  ASSERT_TRUE(here.ok()) << what << ": " << here.status();
  EXPECT_FALSE(there->OnHost()) << what;
  ASSERT_EQ(there->dtype(), here->dtype()) << what;
  ASSERT_EQ(there->shape(), here->shape()) << what;
  const double epsilon = here->dtype() == DType::kF32 ? std::numeric_limits<float>::epsilon()
                                                      : std::numeric_limits<double>::epsilon();
  const std::vector<double> got = Doubles(*there), want = Doubles(*here);
  ASSERT_EQ(units.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    ASSERT_LE(std::abs(got[i] - want[i]), ulps * epsilon * std::abs(units[i]))
        << what << " at " << i << " of " << want.size() << ": " << got[i] << ", want " << want[i];
  }
}

// Returns f(i, row) for each element i, where `row` is the index of the first element of its row.
template <typename F>
std::vector<double> Units(const Tensor& x, const F& f) {
  const auto cols = static_cast<size_t>(x.shape()[x.rank() - 1]);
  std::vector<double> units(static_cast<size_t>(x.NumElements()));
  for (size_t i = 0; i < units.size(); ++i) units[i] = f(i, i - i % cols, cols);
  return units;
}

std::vector<double> AtLeastOne(const Tensor& x) {
  std::vector<double> units = Doubles(x);
  for (double& each : units) each = std::max(1.0, std::abs(each));
  return units;
}

TEST_P(DeviceOperatorTest, SoftmaxIsWithin32UlpsOfTheCpuAndLogSoftmaxWithin8) {
  kernels::OnEveryTarget([&] {
    for (const DType dtype : {DType::kF32, DType::kF64}) {
      for (const Shape& shape : kRowShapes) {
        const Tensor x = Logits(dtype, shape);
        ExpectNear(ops::Softmax(There(x)), ops::Softmax(x), 32, "Softmax");
        const Tensor log = *ops::LogSoftmax(x);
        ExpectNearIn(AtLeastOne(log), ops::LogSoftmax(There(x)), log, 8, "LogSoftmax");
      }
    }
  });
}

TEST_P(DeviceOperatorTest, GradientsOfSoftmaxAreWithin8UlpsOfTheCpu) {
  kernels::OnEveryTarget([&] {
    for (const DType dtype : {DType::kF32, DType::kF64}) {
      for (const Shape& shape : kRowShapes) {
        const Tensor y = *ops::Softmax(Logits(dtype, shape)), g = Logits(dtype, shape, 4);
        const Tensor log = *ops::LogSoftmax(Logits(dtype, shape));
        const std::vector<double> ys = Doubles(y), gs = Doubles(g);
        const auto of_softmax = Units(y, [&](size_t i, size_t row, size_t cols) {
          double most = 0;
          for (size_t k = row; k < row + cols; ++k) most = std::max(most, std::abs(gs[k]));
          return ys[i] * most;
        });
        const auto of_log = Units(y, [&](size_t i, size_t row, size_t cols) {
          double sum = 0;
          for (size_t k = row; k < row + cols; ++k) sum += std::abs(gs[k]);
          return std::abs(gs[i]) + ys[i] * sum;
        });
        ExpectNearIn(of_softmax, ops::SoftmaxGradient(There(y), There(g)),
                     ops::SoftmaxGradient(y, g), 8, "SoftmaxGradient");
        ExpectNearIn(of_log, ops::LogSoftmaxGradient(There(log), There(g)),
                     ops::LogSoftmaxGradient(log, g), 8, "LogSoftmaxGradient");
      }
    }
  });
}

TEST_P(DeviceOperatorTest, CrossEntropyIsNearTheCpus) {
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    for (const Shape& shape : {Shape{1, 1}, {3, 10}, {1000, 17}, {255, 4}, {7, 300}}) {
      const auto rows = static_cast<size_t>(shape[0]);
      std::vector<int64_t> labels(rows);
      for (size_t row = 0; row < rows; ++row)
        labels[row] = static_cast<int64_t>(row * 7 + 2) % shape[1];
      const Tensor classes = Tensor::Of<int64_t>({shape[0]}, labels);
      // Both use the same log-probabilities here, because LogSoftmax is tested above.
      const Tensor y = *ops::LogSoftmax(Logits(dtype, shape));
      const Tensor g = *Tensor::Full({}, dtype, 0.7);
      const Tensor there = There(y), there_labels = There(classes);
      const Tensor want = *Tensor::Zeros({}, dtype), got = There(want);
      const auto* const label = reinterpret_cast<const int64_t*>(classes.address());
      ops::CpuKernels().Find(ops::kCrossEntropy)(nullptr, dtype, y.address(), label, rows,
                                                 static_cast<size_t>(shape[1]),
                                                 const_cast<std::byte*>(want.address()));
      device_->kernels().Find(ops::kCrossEntropy)(
          &device_->default_stream(), dtype, there.address(),
          reinterpret_cast<const int64_t*>(there_labels.address()), rows,
          static_cast<size_t>(shape[1]), const_cast<std::byte*>(got.address()));
      ExpectNearIn(AtLeastOne(want), got, want, dtype == DType::kF32 ? 1 : 8, "CrossEntropy");
      const std::vector<double> units(rows * static_cast<size_t>(shape[1]),
                                      0.7 / static_cast<double>(rows));
      ExpectNearIn(units, ops::CrossEntropyGradient(there, classes, There(g)),
                   ops::CrossEntropyGradient(y, classes, g), 2, "CrossEntropyGradient");
    }
  }
  const Tensor none = *Tensor::Zeros({0, 3}, DType::kF32);
  const Tensor no_labels = *Tensor::Zeros({0}, DType::kI64);
  EXPECT_TRUE(std::isnan(Doubles(*ops::CrossEntropy(There(none), no_labels))[0]));
  EXPECT_EQ(
      ops::CrossEntropyGradient(There(none), no_labels, There(*Tensor::Zeros({}, DType::kF32)))
          ->NumElements(),
      0);
}

TEST_P(DeviceOperatorTest, RowsOfSpecialNumbersGiveWhatTheyGiveOnTheCpu) {
  const double infinity = std::numeric_limits<double>::infinity(), nan = std::nan("");
  const Tensor rows = Tensor::Of<double>({6, 3}, {10000, 9999, -infinity,                       //
                                                  1, nan, 2,                                    //
                                                  1, infinity, 2,                               //
                                                  -infinity, -infinity, -infinity, -0.0, 0, 0,  //
                                                  infinity, infinity, -infinity});
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    const Tensor x = *ops::Cast(rows, dtype);
    ExpectNear(ops::Softmax(There(x)), ops::Softmax(x), 32, "Softmax");
    ExpectNear(ops::LogSoftmax(There(x)), ops::LogSoftmax(x), 16, "LogSoftmax");
  }
  const Tensor none = *Tensor::Zeros({0, 3}, DType::kF32),
               empty = *Tensor::Zeros({3, 0}, DType::kF32);
  ExpectNear(ops::Softmax(There(none)), ops::Softmax(none), 0, "Softmax of no rows");
  ExpectNear(ops::LogSoftmax(There(empty)), ops::LogSoftmax(empty), 0, "LogSoftmax of no columns");
}

// A missing barrier would make the result depend on the order of the threads, which the number of
// the block decides.
TEST_P(DeviceOperatorTest, ARowHasTheSameBitsInEveryBlockAndInPlace) {
  const Tensor row = Logits(DType::kF32, {1, 1000});
  const Tensor rows = *ops::Concat({row, row, row, row}, 0);
  const Tensor there = There(rows);
  const Tensor soft = *ops::Softmax(there);
  const std::vector<double> all = Doubles(soft);
  for (size_t i = 1000; i < all.size(); ++i) ASSERT_EQ(all[i], all[i % 1000]) << i;
  device_->kernels().Find(ops::kSoftmax)(&device_->default_stream(), DType::kF32, there.address(),
                                         4, 1000, const_cast<std::byte*>(there.address()));
  EXPECT_EQ(Doubles(there), all);
}

TEST(DeviceOperatorListTest, DevicesHaveAllKernelsOfTheCpu) {
  EXPECT_EQ(testing::DeviceOperators().Names(), ops::CpuKernels().Names());
}

}  // namespace
}  // namespace psd
