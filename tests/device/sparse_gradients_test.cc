// Sparse gradients of dense parameters on a device: the steps give the same values as those of
// equal parameters on the CPU. The tests run with several seeds, which decide in which order an
// emulated device works.

#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/psd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/test_world.h"
#include "tests/device/device_under_test.h"
#include "tests/device/owner_under_test.h"

namespace psd {
namespace {

using ::testing::FloatNear;
using ::testing::HasSubstr;
using ::testing::Ne;
using ::testing::Pointwise;

constexpr int64_t kRows = 8;
constexpr int64_t kWidth = 3;

class SparseGradientsTest : public testing::OnDevice<::testing::TestWithParam<uint64_t>> {
 protected:
  static std::vector<std::string> Devices() { return {testing::NameOfDevice(), "cpu"}; }
  RRef Make(const std::string& name, const std::string& device) {
    CreateOptions options;
    options.requires_grad = true;
    options.device = device;
    return Must(trainer_->GetOrCreate("owner", name, Uniform({kRows, kWidth}, -1, 1, 7), options));
  }

  // Makes a step for the loss sum(rows * rows) of the rows `ids` of the parameter; and for
  // sum(parameter) if `whole` is set.
  absl::Status Step(DistributedOptimizer& optimizer, const RRef& parameter,
                    const std::vector<int64_t>& ids, const StepOptions& options = {},
                    bool whole = false) {
    Context context = Must(trainer_->NewContext());
    const Tensor numbers = Tensor::Of<int64_t>({static_cast<int64_t>(ids.size())}, ids);
    const Variable rows = Must(trainer_->LookUpRows({{parameter, numbers}}, context))[0];
    std::vector<Variable> roots = {Sum(rows * rows)};
    if (whole) roots.push_back(Sum(Must(trainer_->ToHere({parameter}, context))[0]));
    if (absl::Status back = context.Backward(roots); !back.ok()) return back;
    return optimizer.Step(context, options);
  }

  OwnerUnderTest host_{"owner", {}, GetParam()};
  std::unique_ptr<Worker> trainer_ = StartTrainer("trainer", {host_.owner().address()});
};

INSTANTIATE_TEST_SUITE_P(Orders, SparseGradientsTest, ::testing::Values(0, 1));

TEST_P(SparseGradientsTest, StepsEqualThoseOfTheCpu) {
  const std::vector<OptimizerSpec> specs = {{"sgd", {{"lr", 0.1}}},
                                            {"sgd", {{"lr", 0.1}, {"momentum", 0.9}}},
                                            {"sgd", {{"lr", 0.1}, {"maximize", 1}}},
                                            {"adagrad", {{"lr", 0.1}}},
                                            {"adagrad", {{"lr", 0.1}, {"lr_decay", 0.5}}}};
  StepOptions by_norm;
  by_norm.clip_norm = 0.25;
  for (size_t i = 0; i < specs.size(); ++i) {
    const std::string label = specs[i].type + std::to_string(i);
    SCOPED_TRACE(label);
    const RRef there = Make(label, testing::NameOfDevice()), here = Make("cpu" + label, "cpu");
    const std::vector<float> before = Read(*trainer_, there);
    auto on_device = Must(DistributedOptimizer::Create(*trainer_, specs[i], {there}));
    auto on_cpu = Must(DistributedOptimizer::Create(*trainer_, specs[i], {here}));
    const auto step = [&](const std::vector<int64_t>& ids, const StepOptions& options, bool whole) {
      const testing::NewKernels kernels(host_.device());
      const absl::Status a = Step(*on_device, there, ids, options, whole);
      EXPECT_TRUE(a.ok()) << a;
      kernels.ExpectSome();
      const absl::Status b = Step(*on_cpu, here, ids, options, whole);
      EXPECT_TRUE(b.ok()) << b;
      EXPECT_THAT(Read(*trainer_, there), Pointwise(FloatNear(1e-5f), Read(*trainer_, here)));
    };
    step({1, 5, 1, 7, 1}, {}, false);
    const std::vector<float> after = Read(*trainer_, there);
    for (const int64_t row : {1, 5, 7}) {
      const auto at = static_cast<size_t>(row * kWidth);
      EXPECT_THAT(after[at], Ne(before[at])) << row;
    }
    for (const int64_t row : {0, 2, 3, 4, 6}) {
      for (int64_t j = row * kWidth; j < (row + 1) * kWidth; ++j) {
        EXPECT_EQ(after[static_cast<size_t>(j)], before[static_cast<size_t>(j)]) << row;
      }
    }
    step(std::vector<int64_t>(300, 2), {}, false);  // so many repeats that the trainer adds them up
    step({5, 0, 5}, by_norm, false);
    step({3, 3, 4}, {}, true);  // a dense gradient too
    step({}, {}, false);
  }
}

TEST_P(SparseGradientsTest, OptimizersThatTakeDenseGradientsOnlyRefuseThemAsOnTheCpu) {
  for (const std::string& device : Devices()) {
    const std::string name = absl::StrCat("w", device);
    const RRef w = Make(name, device);
    const std::vector<float> before = Read(*trainer_, w);
    auto adam = Must(DistributedOptimizer::Create(*trainer_, Adam{0.1}, {w}));
    const absl::Status refused = Step(*adam, w, {1, 5, 1});
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("adam takes dense gradients only"));
    EXPECT_THAT(std::string(refused.message()), HasSubstr(name));
    EXPECT_EQ(Read(*trainer_, w), before) << device;
  }
}

// Rows that had no gradient yet would be divided by zero.
TEST_P(SparseGradientsTest, AdagradWithoutEpsRefusesThemOnTheDevice) {
  const RRef w = Make("w", testing::NameOfDevice());
  auto adagrad = Must(DistributedOptimizer::Create(*trainer_, Adagrad{0.1}, {w}));
  for (const double eps : {0.0, 1e-46}) {
    ASSERT_TRUE(adagrad->SetOptions(0, {{"eps", eps}}).ok());
    const absl::Status refused = Step(*adagrad, w, {1, 3});
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("eps"));
    EXPECT_THAT(std::string(refused.message()), HasSubstr(testing::NameOfDevice()));
  }
  ASSERT_TRUE(adagrad->SetOptions(0, {{"eps", 1e-10}}).ok());
  EXPECT_TRUE(Step(*adagrad, w, {1, 3}).ok());
  for (const float element : Read(*trainer_, w)) EXPECT_TRUE(std::isfinite(element));
}

TEST_P(SparseGradientsTest, WeightDecayRefusesThemAsOnTheCpu) {
  for (const std::string& device : Devices()) {
    const RRef w = Make(absl::StrCat("w", device), device);
    const OptimizerSpec decayed{"sgd", {{"lr", 0.1}, {"weight_decay", 0.1}}};
    auto sgd = Must(DistributedOptimizer::Create(*trainer_, decayed, {w}));
    const std::vector<float> before = Read(*trainer_, w);
    const absl::Status refused = Step(*sgd, w, {1, 5, 1});
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("weight_decay"));
    EXPECT_EQ(Read(*trainer_, w), before) << device;
  }
}

}  // namespace
}  // namespace psd
