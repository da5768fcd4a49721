#include "core/optim/rows/row_batches.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "core/base/parallel_for.h"
#include "core/base/thread_pool.h"
#include "core/optim/functional/functional_optimizer.h"
#include "core/optim/options/optimizer_registry.h"
#include "core/tensor/dtype.h"
#include "gtest/gtest.h"
#include "kernels/rows/rows.h"

namespace psd::optim {
namespace {

constexpr size_t kRows = 90'000;
constexpr size_t kWidth = 16;

// A table and its state after a step.
struct Stepped {
  std::vector<float> table = std::vector<float>(kRows * kWidth);
  std::vector<float> state = std::vector<float>(kRows * kWidth);
  std::vector<int> published = std::vector<int>(kRows);  // how often each row was
};

// Steps the rows of `ids`, which may repeat.
Stepped StepBy(const std::string& type, const std::vector<int64_t>& ids, const Helpers& helpers) {
  const auto function = OptimizerRegistry::Builtin().Create({type, {{"lr", 0.1}}}).value();
  kernels::RowGroups groups;
  kernels::GroupRows(ids.data(), ids.size(), &groups);
  std::vector<float> gradients(ids.size() * kWidth);
  for (size_t i = 0; i < gradients.size(); ++i) gradients[i] = static_cast<float>(i % 101) - 50;
  Stepped stepped;
  for (size_t i = 0; i < stepped.table.size(); ++i) stepped.table[i] = static_cast<float>(i % 7);
  std::byte* const state = reinterpret_cast<std::byte*>(stepped.state.data());
  RowArrays arrays;
  arrays.table = reinterpret_cast<const std::byte*>(stepped.table.data());
  arrays.width = kWidth;
  arrays.gradients = reinterpret_cast<const std::byte*>(gradients.data());
  arrays.state = {&state, 1};
  StepRows(*function->rows(), groups, arrays, helpers,
           [&](absl::Span<const int64_t> changed, const std::byte* next) {
             for (size_t i = 0; i < changed.size(); ++i) {
               const auto id = static_cast<size_t>(changed[i]);
               ++stepped.published[id];
               std::memcpy(&stepped.table[id * kWidth], next + i * kWidth * sizeof(float),
                           kWidth * sizeof(float));
             }
           });
  return stepped;
}

// Every second row, and some of them twice. Together they are three pieces, each for one thread.
std::vector<int64_t> ManyIds() {
  std::vector<int64_t> ids;
  for (size_t i = 0; i < kRows; i += 2) ids.push_back(static_cast<int64_t>(i));
  for (size_t i = 0; i < kRows; i += 26) ids.push_back(static_cast<int64_t>(i));
  return ids;
}

TEST(StepRowsTest, HelpersChangeNoBit) {
  ThreadPoolOptions options;
  options.purpose = "a test";
  options.threads = 3;
  ThreadPool pool(options);
  for (const std::string type : {"adagrad", "rowwise_adagrad"}) {
    const Stepped alone = StepBy(type, ManyIds(), {});
    const Stepped shared = StepBy(type, ManyIds(), {&pool, 3});
    for (size_t id = 0; id < kRows; ++id)
      ASSERT_EQ(shared.published[id], id % 2 == 0 ? 1 : 0) << id;
    EXPECT_EQ(alone.published, shared.published);
    EXPECT_EQ(alone.table, shared.table);
    EXPECT_EQ(alone.state, shared.state);
  }
}

// As StepBy for "adagrad", row after row by its formula.
std::vector<float> AdagradTable(const std::vector<int64_t>& ids) {
  std::vector<float> table(kRows * kWidth), sums(kRows * kWidth);
  for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<float>(i % 7);
  for (size_t k = 0; k < ids.size(); ++k) {
    for (size_t j = 0; j < kWidth; ++j)
      sums[static_cast<size_t>(ids[k]) * kWidth + j] +=
          static_cast<float>((k * kWidth + j) % 101) - 50;
  }
  for (size_t i = 0; i < table.size(); ++i)
    if (sums[i] != 0) table[i] -= 0.1f * sums[i] / (std::sqrt(sums[i] * sums[i]) + 1e-10f);
  return table;
}

TEST(StepRowsTest, EachRowIsSteppedByTheSumOfItsGradients) {
  const std::vector<float> want = AdagradTable(ManyIds());
  const Stepped stepped = StepBy("adagrad", ManyIds(), {});
  for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(stepped.table[i], want[i], 1e-5) << i;
}

TEST(StepRowsTest, NoRowsAreNoStep) {
  const Stepped stepped = StepBy("adagrad", {}, {});
  EXPECT_EQ(stepped.published, std::vector<int>(kRows));
}

}  // namespace
}  // namespace psd::optim
