// Compares the row optimizers with scalar loops, on each instruction set of this machine.

#include "kernels/rows/rows_optim.h"

#include <cmath>
#include <limits>
#include <random>
#include <type_traits>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/rows/rows.h"
#include "kernels/rows/rows_reference.h"
#include "tests/kernels/on_every_target.h"

namespace psd::kernels {
namespace {

constexpr size_t kRows = 40;

// A table with a gap behind each row, and ids with repeats. One id has no gradient.
template <typename T>
struct Numbers {
  explicit Numbers(size_t row_width) : width(row_width), stride(row_width + 3) {
    std::mt19937 random(7);
    std::uniform_real_distribution<T> uniform(-1, 1);
    const auto fill = [&](std::vector<T>& v, size_t size) {
      v.resize(size);
      for (T& x : v) x = uniform(random);
    };
    fill(table, kRows * stride);
    std::vector<int64_t> ids(50);
    for (int64_t& id : ids) id = static_cast<int64_t>(random() % (kRows - 1));
    fill(gradients, ids.size() * width);
    GroupRows(ids.data(), ids.size(), &groups);
    groups.ids.push_back(kRows - 1);
    groups.begins.push_back(groups.begins.back());
    for (auto& s : state) s.assign(kRows * width, T{0.125});
    next.assign(groups.ids.size() * width, 99);
  }
  RowBatch<T> Batch(std::vector<T>& out) const {
    RowBatch<T> batch;
    batch.table = table.data();
    batch.stride = stride;
    batch.width = width;
    batch.ids = groups.ids.data();
    batch.begins = groups.begins.data();
    batch.count = groups.ids.size();
    batch.positions = groups.positions.data();
    batch.gradients = gradients.data();
    batch.next = out.data();
    return batch;
  }

  size_t width, stride;
  std::vector<T> table, gradients, next;
  std::vector<T> state[2];
  RowGroups groups;
};

template <typename T>
void ExpectNear(const std::vector<T>& got, const std::vector<T>& want) {
  const T tolerance = std::is_same_v<T, float> ? T(2e-6) : T(1e-13);
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i)
    ASSERT_NEAR(got[i], want[i], tolerance * (1 + std::abs(want[i]))) << "element " << i;
}

// Compares `kernel` with `reference`. Both are called with (step, batch, state 0, state 1).
template <typename T, typename Kernel, typename Reference>
void Compare(const Kernel& kernel, const Reference& reference) {
  for (size_t width : kLengths) {
    if (width == 0) continue;
    SCOPED_TRACE(width);
    Numbers<T> a(width), b(width);
    for (int64_t step : {1, 2}) {
      kernel(step, a.Batch(a.next), a.state[0].data(), a.state[1].data());
      reference(step, b.Batch(b.next), b.state[0].data(), b.state[1].data());
      ExpectNear(a.next, b.next);
      ExpectNear(a.state[0], b.state[0]);
      ExpectNear(a.state[1], b.state[1]);
    }
  }
}

template <typename T>
void CompareSgd(const RowSgdOptions& options) {
  Compare<T>(
      [&](int64_t step, const RowBatch<T>& rows, T*, T*) { SgdRows(options, step, rows, nullptr); },
      [&](int64_t step, const RowBatch<T>& rows, T*, T*) {
        ReferenceSgdRows<T>(options, step, rows, nullptr);
      });
}

TEST(RowsOptimTest, OPT_38_SgdEqualsTheReference) {
  OnEveryTarget([] {
    RowSgdOptions options;
    options.maximize = true;
    CompareSgd<float>(options);
    CompareSgd<double>(options);
  });
}

TEST(RowsOptimTest, OPT_38_SgdWithMomentumEqualsTheReference) {
  OnEveryTarget([] {
    for (bool nesterov : {false, true}) {
      RowSgdOptions options;
      options.momentum = 0.9;
      options.dampening = nesterov ? 0 : 0.5;
      options.nesterov = nesterov;
      Numbers<float> a(10), b(10);
      for (auto* numbers : {&a, &b}) numbers->state[0].assign(numbers->state[0].size(), 0);
      for (int64_t step : {1, 2, 3}) {
        SgdRows(options, step, a.Batch(a.next), a.state[0].data());
        ReferenceSgdRows(options, step, b.Batch(b.next), b.state[0].data());
        ExpectNear(a.next, b.next);
        ExpectNear(a.state[0], b.state[0]);
      }
    }
  });
}

template <typename T>
void CompareAdagrads() {
  RowAdagradOptions options;
  options.lr_decay = 0.1;
  for (bool maximize : {false, true}) {
    options.maximize = maximize;
    Compare<T>([&](int64_t step, const RowBatch<T>& rows, T* s,
                   T*) { AdagradRows(options, step, rows, s); },
               [&](int64_t step, const RowBatch<T>& rows, T* s, T*) {
                 ReferenceAdagradRows(options, step, rows, s);
               });
    Compare<T>([&](int64_t step, const RowBatch<T>& rows, T* s,
                   T*) { RowwiseAdagradRows(options, step, rows, s); },
               [&](int64_t step, const RowBatch<T>& rows, T* s, T*) {
                 ReferenceRowwiseAdagradRows(options, step, rows, s);
               });
  }
}

TEST(RowsOptimTest, OPT_39_AdagradAndRowwiseAdagradEqualTheReference) {
  OnEveryTarget([] {
    CompareAdagrads<float>();
    CompareAdagrads<double>();
  });
}

template <typename T>
void CompareSparseAdam() {
  SparseAdamOptions options;
  Compare<T>([&](int64_t step, const RowBatch<T>& rows, T* m,
                 T* v) { SparseAdamRows(options, step, rows, m, v); },
             [&](int64_t step, const RowBatch<T>& rows, T* m, T* v) {
               ReferenceSparseAdamRows(options, step, rows, m, v);
             });
}

TEST(RowsOptimTest, OPT_41_SparseAdamEqualsTheReference) {
  OnEveryTarget([] {
    CompareSparseAdam<float>();
    CompareSparseAdam<double>();
  });
}

TEST(RowsOptimTest, SummedGradientsAreScaledAndLimited) {
  OnEveryTarget([] {
    Numbers<double> a(19), b(19);
    RowBatch<double> batch = a.Batch(a.next), expected = b.Batch(b.next);
    batch.gradient_scale = expected.gradient_scale = 0.5;
    batch.gradient_limit = expected.gradient_limit = 0.25;
    RowwiseAdagradRows({}, 1, batch, a.state[0].data());
    ReferenceRowwiseAdagradRows({}, 1, expected, b.state[0].data());
    ExpectNear(a.next, b.next);
  });
}

TEST(RowsOptimTest, NanAndInfinityPassThroughToTheirRowOnly) {
  Numbers<float> numbers(17);
  const auto bad = numbers.groups.positions[0];  // the position of the first id
  numbers.gradients[bad * 17 + 3] = std::numeric_limits<float>::quiet_NaN();
  numbers.gradients[bad * 17 + 4] = std::numeric_limits<float>::infinity();
  AdagradRows({}, 1, numbers.Batch(numbers.next), numbers.state[0].data());
  EXPECT_TRUE(std::isnan(numbers.next[3]));
  for (size_t i = 17; i < numbers.next.size(); ++i) EXPECT_TRUE(std::isfinite(numbers.next[i]));
}

}  // namespace
}  // namespace psd::kernels
