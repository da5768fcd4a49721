#include "core/autograd/functions/row_repeats.h"

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "core/autograd/functions/functions.h"
#include "core/autograd/variable.h"
#include "core/tensor/shape.h"
#include "core/tensor/tensor.h"
#include "gtest/gtest.h"
#include "tests/core/autograd/gradient_check.h"

namespace psd {
namespace {

using testing::CheckGradients;
using testing::Numbers;
using Inputs = absl::Span<const Variable>;

constexpr int64_t kRows = 20;

// Returns ids of shape [2, kMinRepeatedIds], in which all rows occur equally often.
Tensor ManyIds() {
  std::vector<int64_t> ids(2 * kMinRepeatedIds);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int64_t>(i) * 7 % kRows;
  return Tensor::Of<int64_t>({2, kMinRepeatedIds}, ids);
}

TEST(RowRepeatsTest, NothingIsGainedWhereHardlyAnyIdRepeats) {
  EXPECT_EQ(*RowRepeats::Find(Tensor::Of<int64_t>({4}, {1, 1, 1, 1})), nullptr);
  std::vector<int64_t> different(kMinRepeatedIds);
  for (size_t i = 0; i < different.size(); ++i) different[i] = static_cast<int64_t>(i);
  EXPECT_EQ(*RowRepeats::Find(Tensor::Of<int64_t>({kMinRepeatedIds}, different)), nullptr);
  EXPECT_EQ((*RowRepeats::Find(ManyIds()))->distinct().NumElements(), kRows);
}

TEST(RowRepeatsTest, GradientsOfRepeatsAddUp) {
  const std::shared_ptr<const RowRepeats> repeats = *RowRepeats::Find(ManyIds());
  CheckGradients([&](Inputs x) { return RepeatRows(x[0], repeats); }, {Numbers({kRows, 3}, 1)});
}

// The gradient that a sum passes back is one row or one number, expanded to the whole shape.
TEST(RowRepeatsTest, GradientsThatWereExpandedAddUp) {
  const std::shared_ptr<const RowRepeats> repeats = *RowRepeats::Find(ManyIds());
  const Tensor rows = Numbers({kRows, 3}, 1);
  CheckGradients([&](Inputs x) { return Sum(RepeatRows(x[0], repeats)); }, {rows});
  CheckGradients([&](Inputs x) { return Sum(Sum(RepeatRows(x[0], repeats), 0), 0); }, {rows});
  CheckGradients([&](Inputs x) { return Sum(RepeatRows(x[0], repeats), 0); }, {rows});
  CheckGradients([&](Inputs x) { return Sum(RepeatRows(x[0], repeats), 1); }, {rows});
  CheckGradients([&](Inputs x) { return Sum(RepeatRows(x[0], repeats), 2); }, {rows});
}

}  // namespace
}  // namespace psd
