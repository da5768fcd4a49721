#include "core/store/rows.h"

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "absl/types/span.h"
#include "core/base/parallel_for.h"
#include "core/base/thread_pool.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/core/store/changing_for_tests.h"

namespace psd::store {
namespace {

const Changing kChanging = ChangingForTests::Make();

using ::testing::ElementsAre;
using ::testing::HasSubstr;

template <typename T>
std::shared_ptr<Rows> Table(int64_t rows, int64_t width) {
  return *Rows::Create(*Tensor::Zeros({rows, width}, DTypeOf<T>::value), /*requires_grad=*/true);
}

// Sets every element of the rows.
template <typename T>
void Set(Rows& rows, std::vector<int64_t> ids, T value) {
  const std::vector<T> next(ids.size() * rows.width(), value);
  EXPECT_TRUE(rows.Write(kChanging, ids, reinterpret_cast<const std::byte*>(next.data())).ok());
  rows.FinishUpdate(kChanging);
}

TEST(RowsTest, WritesAndReadsRows) {
  auto rows = Table<float>(5, 3);
  EXPECT_EQ(rows->TypeName(), "rows f32[5, 3]");
  EXPECT_EQ(rows->bytes(), 60u);
  EXPECT_EQ(rows->version(), 1u);
  Set<float>(*rows, {4, 1}, 2);
  EXPECT_EQ(rows->version(), 2u);
  Tensor read = *rows->Read(Tensor::Of<int64_t>({3, 1}, {1, 0, 4}));
  EXPECT_EQ(read.shape(), (Shape{3, 1, 3}));
  EXPECT_THAT(std::vector<float>(read.data<float>(), read.data<float>() + 9),
              ElementsAre(2, 2, 2, 0, 0, 0, 2, 2, 2));
}

TEST(RowsTest, OnlyTablesOfFloats) {
  for (const Shape& shape : {Shape{4}, Shape{0, 4}, Shape{4, 0}, Shape{1, 1, 1}}) {
    EXPECT_FALSE(Rows::Create(*Tensor::Zeros(shape, DType::kF32), true).ok());
  }
  EXPECT_FALSE(Rows::Create(*Tensor::Zeros({2, 2}, DType::kI64), true).ok());
}

TEST(RowsTest, IdsAreChecked) {
  auto rows = Table<double>(5, 1);
  EXPECT_THAT(std::string(rows->Read(Tensor::Of<int64_t>({2}, {0, 5})).status().message()),
              HasSubstr("id 5 (number 1 of 2)"));
  EXPECT_FALSE(rows->Read(Tensor::Of<int64_t>({1}, {-1})).ok());
  EXPECT_FALSE(rows->Read(Tensor::Of<int32_t>({1}, {1})).ok());
  EXPECT_FALSE(rows->Read(Tensor()).ok());
  EXPECT_EQ(rows->Read(Tensor::Of<int64_t>({0}, {}))->shape(), (Shape{0, 1}));
}

TEST(RowsTest, ValuesAreRecognised) {
  std::shared_ptr<Object> object = Table<float>(1, 1);
  EXPECT_EQ(AsRows(Value(object)), object);
  EXPECT_EQ(AsRows(Value(1)), nullptr);
}

// Writes every row whole again and again, and checks that no reader sees a mix of two writes.
template <typename T>
void ExpectWholeRows(int64_t width) {
  auto rows = Table<T>(2, width);
  std::atomic<bool> stop{false};
  std::vector<std::thread> readers;
  for (int i = 0; i < 2; ++i) {
    readers.emplace_back([&] {
      const Tensor ids = Tensor::Of<int64_t>({2}, {1, 0});
      while (!stop) {
        const Tensor read = *rows->Read(ids);
        const T* element = read.data<T>();
        for (int64_t j = 0; j < 2 * width; ++j) ASSERT_EQ(element[j], element[j / width * width]);
      }
    });
  }
  for (int i = 1; i <= 2000; ++i) Set<T>(*rows, {i % 2}, static_cast<T>(i));
  stop = true;
  for (std::thread& reader : readers) reader.join();
}

TEST(RowsTest, ReadersSeeWholeRows) {
  ExpectWholeRows<float>(64);
  ExpectWholeRows<float>(7);  // copied in words of 4 bytes
  ExpectWholeRows<double>(33);
}

TEST(RowsTest, HelpersReadTheSameRows) {
  constexpr int64_t kRows = 1000, kIds = 45'000, kWidth = 16;  // almost three pieces of 1 MiB
  auto rows = Table<float>(kRows, kWidth);
  for (int64_t id = 0; id < kRows; ++id) Set<float>(*rows, {id}, static_cast<float>(id));
  std::vector<int64_t> ids(kIds);
  for (int64_t i = 0; i < kIds; ++i) ids[i] = i * 7919 % kRows;
  const Tensor wanted = Tensor::Of<int64_t>({kIds / 9, 9}, absl::MakeConstSpan(ids));
  ThreadPoolOptions options;
  options.purpose = "a test";
  options.threads = 3;
  ThreadPool pool(options);
  for (const Helpers& helpers : {Helpers{}, Helpers{&pool, 3}}) {
    const Tensor read = *rows->Read(wanted, helpers);
    ASSERT_EQ(read.shape(), (Shape{kIds / 9, 9, kWidth}));
    const float* element = read.data<float>();
    for (int64_t i = 0; i < kIds * kWidth; ++i)
      ASSERT_EQ(element[i], static_cast<float>(ids[i / kWidth])) << i;
  }
}

// Rows 0 and 1024 have the same counter.
TEST(RowsTest, ThreadsThatWriteDifferentRowsDoNotDisturbEachOther) {
  constexpr int64_t kWidth = 64;
  auto rows = Table<float>(1025, kWidth);
  std::atomic<bool> stop{false};
  std::thread reader([&] {
    const Tensor ids = Tensor::Of<int64_t>({2}, {0, 1024});
    while (!stop) {
      const Tensor read = *rows->Read(ids);
      const float* element = read.data<float>();
      for (int64_t j = 0; j < 2 * kWidth; ++j) ASSERT_EQ(element[j], element[j / kWidth * kWidth]);
    }
  });
  std::vector<std::thread> writers;
  for (const int64_t id : {0, 1024}) {
    writers.emplace_back([&rows, id] {
      for (int i = 1; i <= 5000; ++i) Set<float>(*rows, {id}, static_cast<float>(i));
    });
  }
  for (std::thread& writer : writers) writer.join();
  stop = true;
  reader.join();
  const Tensor last = *rows->Read(Tensor::Of<int64_t>({2}, {0, 1024}));
  for (int64_t j = 0; j < 2 * kWidth; ++j) ASSERT_EQ(last.data<float>()[j], 5000);
}

}  // namespace
}  // namespace psd::store
