#include "core/tensor/tensor.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/buffer.h"
#include "core/base/memory_budget.h"
#include "core/base/memory_place.h"
#include "core/base/memory_scope.h"
#include "core/base/result_memory.h"
#include "core/base/shared_allocator.h"
#include "core/base/small_charges.h"
#include "core/device/emulated/emulated_device.h"
#include "core/tensor/ops/cast.h"
#include "core/tensor/ops/shape_ops.h"
#include "gtest/gtest.h"
#include "tests/core/tensor/compare.h"

namespace psd {
namespace {

TEST(DTypeTest, NamesSizesAndValidity) {
  EXPECT_EQ(DTypeName(DType::kF32), "f32");
  EXPECT_EQ(DTypeName(DType::kBF16), "bf16");
  EXPECT_EQ(ItemSize(DType::kF64), 8u);
  EXPECT_EQ(ItemSize(DType::kBool), 1u);
  EXPECT_FALSE(IsValidDType(0));
  EXPECT_TRUE(IsValidDType(8));
  EXPECT_FALSE(IsValidDType(9));
  EXPECT_FALSE(IsFloating(DType::kI64));
}

TEST(ShapeTest, CheckedRefusesWhatOverflows) {
  const int64_t huge = int64_t{1} << 40;
  EXPECT_TRUE(Shape::Checked({}).ok());
  EXPECT_TRUE(Shape::Checked({0, 5}).ok());
  EXPECT_TRUE(Shape::Checked({int64_t{1} << 59}).ok());
  EXPECT_FALSE(Shape::Checked({(int64_t{1} << 59) + 1}).ok());
  EXPECT_FALSE(Shape::Checked({huge, huge}).ok());
  EXPECT_FALSE(Shape::Checked({huge, 0, huge}).ok());
  EXPECT_FALSE(Shape::Checked({std::numeric_limits<int64_t>::max()}).ok());
  EXPECT_FALSE(Shape::Checked({2, -1}).ok());
  EXPECT_FALSE(Shape::Checked(std::vector<int64_t>(17, 1)).ok());
  EXPECT_TRUE(Shape::Checked(std::vector<int64_t>(16, 1)).ok());
}

TEST(ShapeTest, ErrorsNameTheShape) {
  EXPECT_NE(Shape::Checked({2, -1}).status().message().find("[2, -1]"), std::string::npos);
}

TEST(ShapeTest, ElementsStringsStrides) {
  EXPECT_EQ(Shape{}.NumElements(), 1);
  EXPECT_EQ((Shape{3, 0, 2}).NumElements(), 0);
  EXPECT_EQ((Shape{128, 784}).ToString(), "[128, 784]");
  EXPECT_EQ(Shape{}.ToString(), "[]");
  EXPECT_EQ(ContiguousStrides(Shape{2, 3, 4}), (Strides{12, 4, 1}));
  EXPECT_EQ(ContiguousStrides(Shape{}), Strides{});
}

TEST(ShapeTest, Broadcast) {
  EXPECT_EQ(*BroadcastShapes(Shape{2, 1, 4}, Shape{3, 1}), (Shape{2, 3, 4}));
  EXPECT_EQ(*BroadcastShapes(Shape{}, Shape{5}), (Shape{5}));
  EXPECT_EQ(*BroadcastShapes(Shape{0, 3}, Shape{1, 3}), (Shape{0, 3}));
  EXPECT_EQ(*BroadcastShapes(Shape{0}, Shape{1}), (Shape{0}));
  EXPECT_FALSE(BroadcastShapes(Shape{0}, Shape{2}).ok());
  absl::Status status = BroadcastShapes(Shape{2, 3}, Shape{4}).status();
  EXPECT_NE(status.message().find("[2, 3]"), std::string::npos);
  EXPECT_NE(status.message().find("[4]"), std::string::npos);
  const int64_t huge = int64_t{1} << 40;
  EXPECT_FALSE(BroadcastShapes(Shape{huge, 1}, Shape{1, huge}).ok());
}

TEST(TensorTest, UndefinedUntilAssigned) {
  Tensor tensor;
  EXPECT_FALSE(tensor.defined());
  EXPECT_EQ(tensor.ToString(), "undefined");
  tensor = Tensor::Scalar(2.5);
  EXPECT_TRUE(tensor.defined());
  EXPECT_EQ(tensor.ToString(), "f64[]");
  EXPECT_EQ(*tensor.data<double>(), 2.5);
}

TEST(TensorTest, CreationInEveryDType) {
  for (int number = 1; number <= 8; ++number) {
    const DType dtype = static_cast<DType>(number);
    Tensor zeros = *Tensor::Zeros(Shape{3}, dtype);
    EXPECT_EQ(zeros.NumBytes(), 3 * ItemSize(dtype));
    Tensor ones = *Tensor::Full(Shape{3}, dtype, 1);
    EXPECT_TRUE(ops::Equal(*ops::Cast(ones, DType::kF64), Tensor::Of<double>(Shape{3}, {1, 1, 1})))
        << DTypeName(dtype);
    EXPECT_FALSE(ops::Equal(zeros, ones));
  }
  EXPECT_EQ(*Tensor::Full(Shape{}, DType::kI32, 1e30)->data<int32_t>(),
            std::numeric_limits<int32_t>::max());
  EXPECT_EQ(*Tensor::Full(Shape{}, DType::kI64, std::nan(""))->data<int64_t>(), 0);
}

TEST(TensorTest, CreationOnADeviceThatHasNoKernels) {
  const std::shared_ptr<EmulatedDevice> device = (*EmulatedDevice::Create(1, {}))[0];
  for (const DType dtype : {DType::kU8, DType::kBF16, DType::kF32, DType::kF64}) {
    for (const int64_t elements : {0, 1, 2, 3, 1023, 1024, 1025}) {
      const Shape shape{elements};
      const Tensor there = *Tensor::Full(shape, dtype, 3, &device->memory());
      EXPECT_EQ(there.device(), device.get());
      EXPECT_TRUE(ops::Equal(*there.ToHost(), *Tensor::Full(shape, dtype, 3))) << elements;
      const Tensor zeros = *Tensor::Zeros(shape, dtype, &device->memory());
      EXPECT_TRUE(ops::Equal(*zeros.ToHost(), *Tensor::Zeros(shape, dtype))) << elements;
    }
  }
}

template <typename T>
void ExpectElements(const Tensor& tensor, const std::vector<T>& elements) {
  ASSERT_EQ(tensor.dtype(), DTypeOf<T>::value);
  ASSERT_EQ(tensor.NumElements(), static_cast<int64_t>(elements.size()));
  for (size_t i = 0; i < elements.size(); ++i) EXPECT_EQ(tensor.data<T>()[i], elements[i]);
}

template <typename T>
void ExpectThatOfDeduces() {
  const std::vector<T> values = {1, 0, 1, 1};
  ExpectElements(Tensor::Of({2, 2}, values), values);
  ExpectElements(Tensor::Of({2, 2}, std::vector<T>(values)), values);
  ExpectElements(Tensor::Of<T>({2, 2}, values), values);
  EXPECT_EQ(Tensor::Of({4, 1}, values).shape(), (Shape{4, 1}));
}

TEST(TensorTest, TheTypeOfAVectorNeedNoName) {
  ExpectThatOfDeduces<float>();
  ExpectThatOfDeduces<double>();
  ExpectThatOfDeduces<int64_t>();
  ExpectThatOfDeduces<int32_t>();
  ExpectThatOfDeduces<uint8_t>();
  ExpectThatOfDeduces<bool>();
}

TEST(TensorTest, ListsOfValuesAndShapesAreNotMistakenForVectors) {
  ExpectElements<float>(Tensor::Of({2}, {0.5f, 1.5f}), {0.5f, 1.5f});
  ExpectElements<float>(Tensor::Of<float>({2}, {1, 2}), {1, 2});
  ExpectElements<int32_t>(Tensor::Of({1}, {3}), {3});
  ExpectElements<int64_t>(Tensor::Of<int64_t>({0}, {}), {});
  ExpectElements<double>(Tensor::Of({}, std::vector<double>{2.5}), {2.5});
}

TEST(TensorTest, AVectorThatIsMovedInLendsItsMemoryIfItIsLarge) {
  std::vector<float> large(std::size_t{1} << 16, 1.5f);
  const float* memory = large.data();
  const Tensor taken = Tensor::Of({256, 256}, std::move(large));
  EXPECT_EQ(taken.data<float>(), memory);
  EXPECT_EQ(taken.data<float>()[65535], 1.5f);

  std::vector<float> small(4, 1.5f);
  memory = small.data();
  EXPECT_NE(Tensor::Of({4}, std::move(small)).data<float>(), memory);

  const std::vector<float> kept(std::size_t{1} << 16, 2.5f);
  EXPECT_NE(Tensor::Of({256, 256}, kept).data<float>(), kept.data());
}

TEST(TensorDeathTest, AMovedVectorMustFitItsShape) {
  EXPECT_DEATH(Tensor::Of({3}, std::vector<float>(std::size_t{1} << 16)),
               "65536 values for shape \\[3\\]");
  EXPECT_DEATH(Tensor::Of({3}, std::vector<float>(2)), "2 values for shape \\[3\\]");
}

TEST(TensorTest, EmptyTensors) {
  Tensor empty = *Tensor::Zeros(Shape{0, 4}, DType::kF32);
  EXPECT_TRUE(empty.defined());
  EXPECT_TRUE(empty.IsContiguous());
  EXPECT_EQ(empty.NumElements(), 0);
  EXPECT_EQ(empty.AsBuffer().size(), 0u);
  EXPECT_TRUE(empty.Clone().ok());
}

TEST(TensorTest, MoreThanTheSystemHas) {
  absl::StatusOr<Tensor> tensor = Tensor::Empty(Shape{int64_t{1} << 58}, DType::kF64);
  EXPECT_EQ(tensor.status().code(), absl::StatusCode::kResourceExhausted);
}

TEST(TensorTest, LargeResultsComeFromTheMemoryOfTheThread) {
  const auto account = MemoryAccount::Create(size_t{1} << 20, NewHeapAllocator());
  Tensor outside = *Tensor::Zeros({100'000}, DType::kF32);
  {
    MemoryScope scope(account.get());
    Tensor inside = *Tensor::Zeros({100'000}, DType::kF32);
    EXPECT_EQ(account->used_bytes(), 400'000u);
    EXPECT_EQ(Tensor::Zeros({200'000}, DType::kF32).status().code(),
              absl::StatusCode::kResourceExhausted);
  }
  EXPECT_EQ(account->used_bytes(), 0u);
}

TEST(TensorTest, SmallResultsAreChargedToTheMemoryOfTheThread) {
  const auto budget = MemoryBudget::Create(size_t{8} << 20);
  std::vector<Tensor> results;
  {
    MemoryScope scope(budget->transit().get());
    absl::StatusOr<Tensor> made = Tensor::Zeros({1000}, DType::kF32);
    while (made.ok()) {
      results.push_back(*std::move(made));
      made = Tensor::Zeros({1000}, DType::kF32);
    }
    EXPECT_EQ(made.status().code(), absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(Tensor::Scalar(1.0F).NumElements(), 1) << "what the code says is not refused";
  }
  EXPECT_GT(results.size(), 1000u);
  EXPECT_LT(results.size() * 4000, budget->transit()->limit_bytes());
  results.clear();
  EXPECT_LT(budget->transit()->used_bytes(), kSmallChargeStep);
}

TEST(TensorTest, CopiesShareClonesDoNot) {
  Tensor a = Tensor::Of<float>(Shape{2}, {1, 2});
  Tensor b = a;
  EXPECT_EQ(a.data<float>(), b.data<float>());
  EXPECT_EQ(a.storage(), b.storage());
  Tensor c = *a.Clone();
  EXPECT_NE(a.data<float>(), c.data<float>());
  EXPECT_TRUE(ops::Equal(a, c));
  EXPECT_EQ(a.Contiguous()->data<float>(), a.data<float>());
}

TEST(TensorTest, ContiguousGathersViews) {
  Tensor x = Tensor::Of<float>(Shape{2, 3}, {1, 2, 3, 4, 5, 6});
  Tensor turned = *ops::Transpose(x, 0, 1);
  EXPECT_FALSE(turned.IsContiguous());
  EXPECT_TRUE(ops::Equal(*turned.Contiguous(), Tensor::Of<float>(Shape{3, 2}, {1, 4, 2, 5, 3, 6})));
  // An axis of one element may have any stride.
  EXPECT_TRUE(x.View(Shape{1, 3}, {77, 1}, 3).IsContiguous());
}

TEST(TensorTest, FromBufferSharesAlignedBytes) {
  Tensor x = Tensor::Of<float>(Shape{4}, {1, 2, 3, 4});
  Tensor y = *Tensor::FromBuffer(Shape{2}, DType::kF32, x.AsBuffer().Slice(8, 8));
  EXPECT_EQ(y.data<float>(), x.data<float>() + 2);
  EXPECT_EQ(y.storage(), x.storage());
}

TEST(TensorTest, FromBufferCopiesMisalignedBytes) {
  std::string bytes(9, '\0');
  const float values[] = {1.5f, -2};
  std::memcpy(&bytes[1], values, 8);
  Tensor x = *Tensor::FromBuffer(Shape{2}, DType::kF32, Buffer::FromString(bytes).Slice(1, 8));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(x.raw_data()) % 4, 0u);
  EXPECT_TRUE(ops::Equal(x, Tensor::Of<float>(Shape{2}, {1.5f, -2})));
}

TEST(TensorTest, FromBufferNeedsTheExactSize) {
  for (size_t size : {0, 7, 9}) {
    absl::StatusOr<Tensor> x =
        Tensor::FromBuffer(Shape{2}, DType::kF32, Buffer::FromString(std::string(size, 'x')));
    EXPECT_EQ(x.status().code(), absl::StatusCode::kInvalidArgument) << size;
  }
  EXPECT_TRUE(Tensor::FromBuffer(Shape{0}, DType::kF32, Buffer()).ok());
}

// Makes an array with two floats every 16 bytes: 0 and 1, 10 and 11, …
std::shared_ptr<std::vector<float>> Pairs(size_t count) {
  auto pairs = std::make_shared<std::vector<float>>(4 * count - 2);
  for (size_t i = 0; i < count; ++i) {
    (*pairs)[4 * i] = static_cast<float>(10 * i);
    (*pairs)[4 * i + 1] = static_cast<float>(10 * i + 1);
  }
  return pairs;
}

Buffer BytesOf(const std::shared_ptr<std::vector<float>>& values) {
  return Buffer(values, reinterpret_cast<const std::byte*>(values->data()), 4 * values->size());
}

TEST(TensorTest, ARunIsCutInPlace) {
  auto pairs = Pairs(3);
  std::vector<Tensor> run = {Tensor::Scalar(1.0f)};
  ASSERT_TRUE(Tensor::CutRun({2}, DType::kF32, BytesOf(pairs), 16, 3, &run).ok());
  ASSERT_EQ(run.size(), 4u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(run[i + 1].data<float>(), pairs->data() + 4 * i);
    EXPECT_EQ(run[i + 1].ToString(), "f32[2]");
    EXPECT_EQ(run[i + 1].NumElements(), 2);
    EXPECT_TRUE(run[i + 1].IsContiguous());
    EXPECT_FALSE(run[i + 1].IsExclusive());
    EXPECT_EQ(run[i + 1].storage().get(), pairs.get());
  }
  EXPECT_TRUE(Tensor::CutRun({2}, DType::kF32, Buffer(), 16, 0, &run).ok());
  EXPECT_EQ(run.size(), 4u);
}

TEST(TensorTest, AnyTensorOfARunKeepsItsBytes) {
  for (size_t kept = 0; kept < 3; ++kept) {
    auto pairs = Pairs(3);
    const std::weak_ptr<std::vector<float>> alive = pairs;
    std::vector<Tensor> run;
    // A shape of four axes has memory of its own.
    ASSERT_TRUE(Tensor::CutRun({1, 1, 1, 2}, DType::kF32, BytesOf(pairs), 16, 3, &run).ok());
    pairs.reset();
    Tensor tensor = run[kept];
    run.clear();
    EXPECT_EQ(tensor.data<float>()[1], 10.0f * static_cast<float>(kept) + 1);
    EXPECT_EQ(tensor.ToString(), "f32[1, 1, 1, 2]");
    EXPECT_FALSE(tensor.IsExclusive());
    EXPECT_FALSE(alive.expired());
    Tensor view = tensor.View({1}, {1}, 1);
    Buffer bytes = tensor.AsBuffer();
    tensor = Tensor();
    EXPECT_EQ(*view.data<float>(), 10.0f * static_cast<float>(kept) + 1);
    view = Tensor();
    EXPECT_EQ(bytes.size(), 8u);
    EXPECT_FALSE(alive.expired());
    bytes = Buffer();
    EXPECT_TRUE(alive.expired());
  }
}

TEST(TensorTest, ARunOfEmptyTensors) {
  std::vector<Tensor> run;
  ASSERT_TRUE(Tensor::CutRun({0, 3}, DType::kF64, Buffer(), 0, 2, &run).ok());
  ASSERT_TRUE(Tensor::CutRun({0, 3}, DType::kF64, BytesOf(Pairs(1)).Slice(0, 0), 0, 2, &run).ok());
  ASSERT_EQ(run.size(), 4u);
  for (const Tensor& tensor : run) EXPECT_EQ(tensor.ToString(), "f64[0, 3]");
}

TEST(TensorTest, ARunThatIsNotAlignedIsCopied) {
  auto pairs = Pairs(2);
  std::vector<Tensor> run;
  // All doubles, or every second one, start at an odd multiple of 4 bytes.
  ASSERT_TRUE(Tensor::CutRun({}, DType::kF64, BytesOf(pairs).Slice(4, 16), 8, 2, &run).ok());
  ASSERT_TRUE(Tensor::CutRun({}, DType::kF64, BytesOf(pairs).Slice(0, 20), 12, 2, &run).ok());
  // These bytes have no owner that keeps them alive.
  const Buffer borrowed(nullptr, BytesOf(pairs).data(), 24);
  ASSERT_TRUE(Tensor::CutRun({}, DType::kF64, borrowed, 16, 2, &run).ok());
  ASSERT_EQ(run.size(), 6u);
  const size_t starts[] = {4, 12, 0, 12, 0, 16};
  for (size_t i = 0; i < run.size(); ++i) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(run[i].raw_data()) % 8, 0u);
    EXPECT_EQ(std::memcmp(run[i].raw_data(), BytesOf(pairs).data() + starts[i], 8), 0) << i;
    EXPECT_EQ(run[i].IsExclusive(), i != 2) << i;  // tensor 2 is aligned and not copied
  }
}

TEST(TensorTest, HandlesOfARunMayGoOnManyThreads) {
  auto pairs = Pairs(64);
  const std::weak_ptr<std::vector<float>> alive = pairs;
  std::vector<Tensor> run;
  ASSERT_TRUE(Tensor::CutRun({2}, DType::kF32, BytesOf(pairs), 16, 64, &run).ok());
  pairs.reset();
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([mine = run] {
      for (size_t k = 0; k < mine.size(); ++k) {
        const Tensor copy = mine[k];
        EXPECT_EQ(*copy.data<float>(), 10.0f * static_cast<float>(k));
      }
    });
  }
  run.clear();
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(alive.expired());
}

TEST(TensorTest, AViewOfAViewKeepsTheElementsOnly) {
  Tensor x = Tensor::Of<float>({4}, {1, 2, 3, 4});
  Tensor middle = x.View({2}, {2}, 1);
  Tensor last = middle.View({1}, {1}, 1);
  EXPECT_EQ(middle.strides(), (Strides{2}));
  EXPECT_EQ(last.storage(), x.storage());
  const auto* data = x.data<float>();
  x = Tensor();
  middle = Tensor();
  EXPECT_EQ(last.data<float>(), data + 2);
  EXPECT_EQ(*last.data<float>(), 3);
}

TEST(TensorTest, AssigningATensorToItselfChangesNothing) {
  Tensor x = Tensor::Scalar(3.0f);
  Tensor& same = x;
  x = same;
  EXPECT_TRUE(x.IsExclusive());
  x = std::move(same);
  EXPECT_EQ(*x.data<float>(), 3);
}

TEST(TensorTest, ASmallTensorThatNobodyElseSeesIsExclusive) {
  Tensor x = Tensor::Of<float>({2, 3}, {1, 2, 3, 4, 5, 6});
  EXPECT_TRUE(x.IsExclusive());
  {
    const Tensor copy = x;
    EXPECT_FALSE(x.IsExclusive());
    EXPECT_FALSE(copy.IsExclusive());
  }
  {
    const Tensor view = x.View({3}, {1}, 3);
    EXPECT_FALSE(x.IsExclusive());
    EXPECT_FALSE(view.IsExclusive());
  }
  {
    const Buffer bytes = x.AsBuffer();
    EXPECT_FALSE(x.IsExclusive());
  }
  EXPECT_TRUE(x.IsExclusive());
}

TEST(TensorTest, WhatLiesInMemoryOfItsOwnIsNotKnownToBeExclusive) {
  const Tensor arrived =
      *Tensor::FromBuffer({2}, DType::kF32, Buffer::FromString(std::string(8, '\0')));
  EXPECT_FALSE(arrived.IsExclusive());
  EXPECT_FALSE(Tensor::Zeros({1 << 20}, DType::kF32)->IsExclusive());
  EXPECT_FALSE(Tensor().IsExclusive());
}

TEST(TensorTest, LargeResultsComeFromTheMemoryOfResults) {
  const ResultMemoryScope scope(NewSharedAllocator({}));
  const auto kind = [](int64_t elements) {
    return Tensor::Empty({elements}, DType::kF32)->place().kind();
  };
  EXPECT_EQ(kind(1 << 18), MemoryPlace::Kind::kSegment);
  EXPECT_EQ(kind(1 << 10), MemoryPlace::Kind::kHeap);
  const auto account = MemoryAccount::Create(0, NewHeapAllocator());
  const MemoryScope peer(account.get());  // a thread that works for a peer
  EXPECT_EQ(kind(1 << 18), MemoryPlace::Kind::kHeap);
}

}  // namespace
}  // namespace psd
