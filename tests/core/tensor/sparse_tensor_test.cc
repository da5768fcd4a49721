#include "core/tensor/sparse_tensor.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace psd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

template <typename T>
std::vector<T> Elements(const Tensor& tensor) {
  return {tensor.data<T>(), tensor.data<T>() + tensor.NumElements()};
}

SparseTensor Rows(std::initializer_list<int64_t> ids, std::initializer_list<float> values) {
  const auto count = static_cast<int64_t>(ids.size());
  return *SparseTensor::Create({4, 2}, Tensor::Of<int64_t>({1, count}, ids),
                               Tensor::Of<float>({count, 2}, values));
}

TEST(SparseTensorTest, RepeatedCoordinatesAddUpOnce) {
  SparseTensor sparse = Rows({3, 1, 3}, {1, 2, 3, 4, 5, 6});
  EXPECT_EQ(sparse.ToString(), "sparse f32[4, 2] of 3 entries");
  SparseTensor once = *sparse.Coalesced();
  EXPECT_THAT(Elements<int64_t>(once.indices()), ElementsAre(1, 3));
  EXPECT_THAT(Elements<float>(once.values()), ElementsAre(3, 4, 6, 8));
  EXPECT_THAT(Elements<float>(*sparse.ToDense()), ElementsAre(0, 0, 3, 4, 0, 0, 6, 8));
}

TEST(SparseTensorTest, EveryAxisMayBeSparse) {
  SparseTensor sparse = *SparseTensor::Create(
      {2, 3}, Tensor::Of<int64_t>({2, 3}, {1, 0, 1, 2, 1, 2}), Tensor::Of<double>({3}, {1, 2, 4}));
  EXPECT_THAT(Elements<double>(*sparse.ToDense()), ElementsAre(0, 2, 0, 0, 0, 5));
  SparseTensor once = *sparse.Coalesced();
  EXPECT_THAT(Elements<int64_t>(once.indices()), ElementsAre(0, 1, 1, 2));
  EXPECT_THAT(Elements<double>(once.values()), ElementsAre(2, 5));
}

TEST(SparseTensorTest, SumsKeepAllEntries) {
  SparseTensor sum = *ConcatSparse({Rows({1}, {1, 2}), Rows({}, {}), Rows({1, 0}, {3, 4, 5, 6})});
  EXPECT_THAT(Elements<int64_t>(sum.indices()), ElementsAre(1, 1, 0));
  EXPECT_THAT(Elements<float>(*sum.ToDense()), ElementsAre(5, 6, 4, 6, 0, 0, 0, 0));
  EXPECT_FALSE(ConcatSparse({}).ok());
  EXPECT_FALSE(ConcatSparse({Rows({1}, {1, 2}), SparseTensor()}).ok());
}

TEST(SparseTensorTest, BadPartsAreNamed) {
  const Tensor values = Tensor::Of<float>({1, 2}, {1, 2});
  const auto message = [&](const Tensor& indices, const Tensor& given) {
    return std::string(SparseTensor::Create({4, 2}, indices, given).status().message());
  };
  EXPECT_THAT(message(Tensor::Of<int64_t>({1, 1}, {4}), values), HasSubstr("at 4 along axis 0"));
  EXPECT_THAT(message(Tensor::Of<int64_t>({1, 1}, {-1}), values), HasSubstr("at -1"));
  EXPECT_THAT(message(Tensor::Of<int64_t>({1}, {1}), values), HasSubstr("indices"));
  EXPECT_THAT(message(Tensor::Of<float>({1, 1}, {1}), values), HasSubstr("i64"));
  EXPECT_THAT(message(Tensor(), values), HasSubstr("undefined"));
  EXPECT_THAT(message(Tensor::Of<int64_t>({1, 1}, {1}), Tensor::Of<float>({2}, {1, 2})),
              HasSubstr("[1, 2]"));
}

TEST(SparseTensorTest, OnlyFloatsAddUp) {
  SparseTensor integers =
      *SparseTensor::Create({4}, Tensor::Of<int64_t>({1, 1}, {1}), Tensor::Of<int32_t>({1}, {1}));
  EXPECT_EQ(integers.ToDense().status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(integers.Coalesced().status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace psd
