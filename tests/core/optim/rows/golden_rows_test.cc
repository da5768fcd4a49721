// Compares the row optimizers with values computed by PyTorch (tests/golden/optim). An owner steps
// rows, and dense parameters with sparse gradients.

#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/status.h"
#include "core/optim/owner/owner_optimizer.h"
#include "core/optim/parameters/stepped_parameter.h"
#include "core/store/rows.h"
#include "core/store/store.h"
#include "core/store/value.h"
#include "core/tensor/dtype.h"
#include "core/tensor/ops/cast.h"
#include "core/tensor/shape.h"
#include "core/tensor/sparse_tensor.h"
#include "core/tensor/tensor.h"
#include "gtest/gtest.h"
#include "tests/core/optim/dense/golden_cases.h"
#include "tests/core/optim/owner/owner_fixture.h"

namespace psd::optim {
namespace {

using store::EntryPtr;

std::vector<GoldenCase> Cases() {
  std::ifstream file("tests/golden/optim/golden_rows.txt");
  return ReadGoldenCases(file);
}

Tensor Numbers(const Shape& shape, DType dtype, const std::vector<double>& numbers) {
  return *ops::Cast(Tensor::Of<double>(shape, numbers), dtype);
}

std::vector<double> AsDoubles(const Tensor& tensor) {
  const Tensor doubles = *ops::Cast(tensor, DType::kF64);
  return {doubles.data<double>(), doubles.data<double>() + doubles.NumElements()};
}

Shape TableShape(const GoldenCase& golden) {
  return *Shape::Checked(golden.shape);
}

absl::StatusOr<SparseTensor> Gradient(const GoldenCase& golden, const GoldenStep& step) {
  const auto entries = static_cast<int64_t>(step.rows.size());
  return SparseTensor::Create(TableShape(golden), Numbers({1, entries}, DType::kI64, step.rows),
                              Numbers({entries, golden.shape[1]}, golden.dtype, step.gradient));
}

class GoldenRows : public OwnerOptimizerTest {
 protected:
  absl::Status Replay(const GoldenCase& golden, const EntryPtr& entry) {
    PSD_ASSIGN_OR_RETURN(auto optimizer, NewOptimizer(golden.spec, {entry}));
    for (size_t i = 0; i < golden.steps.size(); ++i) {
      ParameterGradient gradient;
      gradient.parameter = entry->id;
      PSD_ASSIGN_OR_RETURN(SparseTensor rows, Gradient(golden, golden.steps[i]));
      gradient.sparse = {std::move(rows)};
      PSD_RETURN_IF_ERROR(Step(*optimizer, {std::move(gradient)}).status());
      PSD_RETURN_IF_ERROR(
          Compare(golden.dtype, Elements(entry), golden.steps[i].after, /*step=*/i + 1));
    }
    return absl::OkStatus();
  }

  EntryPtr NewRows(const GoldenCase& golden) {
    auto rows = *store::Rows::Create(Numbers(TableShape(golden), golden.dtype, golden.initial),
                                     /*requires_grad=*/true);
    return *store_->Put(store::Value(std::shared_ptr<store::Object>(std::move(rows))), false);
  }
  EntryPtr NewDense(const GoldenCase& golden) {
    Reset(0);
    return NewParameter("dense", Numbers(TableShape(golden), golden.dtype, golden.initial));
  }

  static std::vector<double> Elements(const EntryPtr& entry) {
    if (entry->parameter != nullptr) return AsDoubles(entry->parameter->Pin()->tensor);
    const auto rows = store::AsRows(entry->value);
    std::vector<int64_t> ids;
    for (int64_t id = 0; id < rows->NumRows(); ++id) ids.push_back(id);
    return AsDoubles(*rows->Read(Tensor::Of<int64_t>({rows->NumRows()}, ids)));
  }

  void ReplayAll(const std::string& type, bool dense_too) {
    int count = 0;
    for (const GoldenCase& golden : Cases()) {
      if (golden.spec.type != type) continue;
      ++count;
      const absl::Status rows = Replay(golden, NewRows(golden));
      EXPECT_TRUE(rows.ok()) << golden.line << ": " << rows;
      if (!dense_too) continue;
      const absl::Status dense = Replay(golden, NewDense(golden));
      EXPECT_TRUE(dense.ok()) << golden.line << ", dense: " << dense;
    }
    EXPECT_EQ(count, 20);
  }
};

TEST_F(GoldenRows, RepeatedRowsAndEmptyGradientsAreAmongThem) {
  int repeated = 0, empty = 0;
  for (const GoldenCase& golden : Cases()) {
    for (const GoldenStep& step : golden.steps) {
      std::map<double, int> times;
      bool twice = false;
      for (double row : step.rows) twice = ++times[row] > 1 || twice;
      repeated += twice;
      empty += step.rows.empty();
    }
  }
  EXPECT_GE(repeated, 100);
  EXPECT_GE(empty, 20);
}

TEST_F(GoldenRows, OPT_38_Sgd) {
  ReplayAll("sgd", /*dense_too=*/true);
}
TEST_F(GoldenRows, OPT_39_Adagrad) {
  ReplayAll("adagrad", /*dense_too=*/true);
}
TEST_F(GoldenRows, RowwiseAdagrad) {
  ReplayAll("rowwise_adagrad", /*dense_too=*/false);
}
TEST_F(GoldenRows, OPT_41_SparseAdam) {
  ReplayAll("sparse_adam", /*dense_too=*/false);
}

}  // namespace
}  // namespace psd::optim
