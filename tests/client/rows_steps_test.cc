// Optimizers that step embedding tables, and rows of dense parameters, through the public
// interface.

#include <atomic>
#include <cmath>
#include <limits>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/psd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/rows_world.h"
#include "tests/client/test_world.h"

namespace psd {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::FloatNear;
using ::testing::HasSubstr;
using ::testing::Pointwise;
using RowsStepsTest = RowsTest;

const OptimizerSpec kAdagrad{"adagrad", {{"lr", 1}, {"eps", 0}}};

TEST_F(RowsStepsTest, OPT_38_SgdSumsDuplicatesAndLeavesOtherRows) {
  RRef table = Table(4, 2);
  Sgd sgd;
  sgd.lr = 0.5;
  auto optimizer = Must(DistributedOptimizer::Create(*trainer_, "main", sgd, {table}));
  ASSERT_TRUE(StepBy(*optimizer, table, {3, 1, 3}, 1).ok());
  EXPECT_THAT(Rows(table, {0, 1, 2, 3}), ElementsAre(1, 1, 0.5, 0.5, 1, 1, 0, 0));
}

TEST_F(RowsStepsTest, OPT_38_MomentumMovesRowsThatHaveNoGradientAnyMore) {
  RRef table = Table(4, 1);
  Sgd sgd;
  sgd.lr = 1;
  sgd.momentum = 0.5;
  auto optimizer = Must(DistributedOptimizer::Create(*trainer_, "main", sgd, {table}));
  ASSERT_TRUE(StepBy(*optimizer, table, {1}, 1).ok());  // b = {1: 1}
  ASSERT_TRUE(StepBy(*optimizer, table, {3}, 1).ok());  // b = {1: 0.5, 3: 1}
  EXPECT_THAT(Rows(table, {0, 1, 2, 3}), ElementsAre(1, -0.5, 1, 0));
}

TEST_F(RowsStepsTest, OPT_38_NesterovAndMaximize) {
  RRef table = Table(2, 1);
  Sgd sgd;
  sgd.lr = 1;
  sgd.momentum = 0.5;
  sgd.nesterov = true;
  sgd.maximize = true;
  auto optimizer = Must(DistributedOptimizer::Create(*trainer_, "main", sgd, {table}));
  ASSERT_TRUE(StepBy(*optimizer, table, {0}, 1).ok());  // g = -1, b = -1, d = -1.5
  EXPECT_THAT(Rows(table, {0, 1}), ElementsAre(2.5, 1));
}

TEST_F(RowsStepsTest, OPT_39_AdagradSumsDuplicatesBeforeSquaring) {
  RRef table = Table(3, 2);
  auto optimizer = Must(DistributedOptimizer::Create(*trainer_, "main", kAdagrad, {table}));
  ASSERT_TRUE(StepBy(*optimizer, table, {2, 2}, 1).ok());  // g = 2, s = 4
  ASSERT_TRUE(StepBy(*optimizer, table, {2}, 1).ok());     // g = 1, s = 5
  const float expected = 1 - 1 - 1 / std::sqrt(5.0f);
  EXPECT_THAT(Rows(table, {2}), Pointwise(FloatNear(1e-6f), {expected, expected}));
  EXPECT_THAT(Rows(table, {0, 1}), Each(1));
}

TEST_F(RowsStepsTest, OPT_40_WeightDecayOfAdagradWithSparseGradientsIsRefused) {
  for (const char* type : {"adagrad", "rowwise_adagrad"}) {
    const OptimizerSpec spec{type, {{"weight_decay", 0.5}}};
    absl::Status refused = DistributedOptimizer::Create(*trainer_, spec, {Table(2, 1)}).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(refused.message()), HasSubstr("weight_decay"));
  }
}

TEST_F(RowsStepsTest, OPT_40_StochasticRoundingOfRowsIsRefused) {
  for (const char* type : {"sgd", "adagrad"}) {
    const OptimizerSpec spec{type, {{"stochastic_rounding", 1}}};
    absl::Status refused = DistributedOptimizer::Create(*trainer_, spec, {Table(2, 1)}).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(refused.message()), HasSubstr("stochastic_rounding"));
  }
}

TEST_F(RowsStepsTest, RowwiseAdagradKeepsOneAccumulatorPerRow) {
  RRef table = Table(3, 4);
  RowwiseAdagrad adagrad;
  adagrad.lr = 1;
  adagrad.eps = 0;
  auto optimizer = Must(DistributedOptimizer::Create(*trainer_, "main", adagrad, {table}));
  ASSERT_TRUE(StepBy(*optimizer, table, {2, 2}, 1).ok());  // g = 2, s = 4
  ASSERT_TRUE(StepBy(*optimizer, table, {2}, 1).ok());     // g = 1, s = 5
  const float expected = 1 - 1 - 1 / std::sqrt(5.0f);
  EXPECT_THAT(Rows(table, {2}), Pointwise(FloatNear(1e-6f), std::vector<float>(4, expected)));
  EXPECT_THAT(Rows(table, {0, 1}), Each(1));
}

TEST_F(RowsStepsTest, OPT_41_SparseAdamCountsStepsPerTable) {
  RRef table = Table(2, 1);
  SparseAdam adam;
  adam.lr = 0.1;
  auto optimizer = Must(DistributedOptimizer::Create(*trainer_, "main", adam, {table}));
  ASSERT_TRUE(StepBy(*optimizer, table, {0}, 1).ok());
  ASSERT_TRUE(StepBy(*optimizer, table, {1}, 1).ok());  // its first gradient, but t = 2
  const double m = 0.1, v = 0.001;
  const double rate = 0.1 * std::sqrt(1 - 0.999 * 0.999) / (1 - 0.9 * 0.9);
  EXPECT_THAT(Rows(table, {0, 1}),
              Pointwise(FloatNear(1e-5f),
                        {0.9f, static_cast<float>(1 - rate * m / (std::sqrt(v) + 1e-8))}));
}

TEST_F(RowsStepsTest, OPT_40_WeightDecayWithSparseGradientsIsRefused) {
  RRef table = Table(2, 1);
  Sgd sgd;
  sgd.weight_decay = 0.1;
  absl::Status refused = DistributedOptimizer::Create(*trainer_, sgd, {table}).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()), AllOf(HasSubstr("emb"), HasSubstr("weight_decay")));
}

TEST_F(RowsStepsTest, OPT_41_SparseAdamRefusesDenseParametersAndBadOptions) {
  RRef dense = MakeParameter(*trainer_, "owner0", "w", Tensor::Of<float>({2}, {1, 2}));
  EXPECT_EQ(DistributedOptimizer::Create(*trainer_, SparseAdam{}, {dense}).status().code(),
            absl::StatusCode::kInvalidArgument);
  SparseAdam still;
  still.lr = 0;
  EXPECT_EQ(DistributedOptimizer::Create(*trainer_, still, {Table(2, 1)}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(RowsStepsTest, OPT_42_OptimizersOfDenseGradientsRefuseRowsBeforeAnythingChanges) {
  RRef table = Table(2, 1);
  for (const OptimizerSpec& spec : {OptimizerSpec(Adam{}), OptimizerSpec(AdamW{})}) {
    absl::Status refused = DistributedOptimizer::Create(*trainer_, spec, {table}).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(refused.message()), HasSubstr("sparse_adam"));
  }
}

TEST_F(DenseTableTest, OPT_38_SgdTakesSparseGradientsOfDenseParameters) {
  RRef table = Dense(3, 2);
  Sgd sgd;
  sgd.lr = 0.5;
  auto optimizer = Must(DistributedOptimizer::Create(*trainer_, "main", sgd, {table}));
  ASSERT_TRUE(StepBy(*optimizer, table, {2, 0, 2}, 1).ok());
  EXPECT_THAT(Read(*trainer_, table), ElementsAre(0.5, 0.5, 1, 1, 0, 0));
  ASSERT_TRUE(StepBy(*optimizer, table, {1}, 1).ok());
  EXPECT_THAT(Read(*trainer_, table), ElementsAre(0.5, 0.5, 0.5, 0.5, 0, 0));
}

TEST_F(DenseTableTest, OPT_39_AdagradTakesSparseGradientsOfDenseParameters) {
  RRef table = Dense(3, 1);
  auto optimizer = Must(DistributedOptimizer::Create(*trainer_, "main", kAdagrad, {table}));
  ASSERT_TRUE(StepBy(*optimizer, table, {2, 2}, 1).ok());
  ASSERT_TRUE(StepBy(*optimizer, table, {2, 0}, 1).ok());
  EXPECT_THAT(Read(*trainer_, table),
              Pointwise(FloatNear(1e-6f), {0.0f, 1.0f, -1 / std::sqrt(5.0f)}));
}

TEST_F(DenseTableTest, OPT_38_MomentumOfDenseParametersMovesAbsentRows) {
  RRef table = Dense(3, 1);
  Sgd sgd;
  sgd.lr = 1;
  sgd.momentum = 0.5;
  auto optimizer = Must(DistributedOptimizer::Create(*trainer_, "main", sgd, {table}));
  ASSERT_TRUE(StepBy(*optimizer, table, {1}, 1).ok());
  ASSERT_TRUE(StepBy(*optimizer, table, {2}, 1).ok());
  EXPECT_THAT(Read(*trainer_, table), ElementsAre(1, -0.5, 0));
}

TEST_F(DenseTableTest, OPT_42_SparseGradientsAreRefusedBeforeAnythingChanges) {
  RRef table = Dense(3, 1);
  RRef other = MakeParameter(*trainer_, "owner0", "other", Tensor::Of<float>({1}, {1}));
  auto optimizer = Must(DistributedOptimizer::Create(*trainer_, "main", Adam{}, {table, other}));
  Context context = Must(trainer_->NewContext());
  auto rows = Must(trainer_->LookUpRows({{table, Ids({1})}}, context));
  auto whole = Must(trainer_->ToHere({other}, context));
  ASSERT_TRUE(context.Backward({Sum(rows[0]) + Sum(whole[0])}).ok());
  absl::Status refused = optimizer->Step(context);
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr("adam takes dense gradients only"), HasSubstr("'dense'")));
  EXPECT_THAT(Read(*trainer_, table), Each(1));
  EXPECT_THAT(Read(*trainer_, other), Each(1));
}

TEST_F(DenseTableTest, OPT_40_WeightDecayRefusesSparseGradients) {
  RRef table = Dense(3, 1);
  Sgd sgd;
  sgd.weight_decay = 0.5;
  auto optimizer = Must(DistributedOptimizer::Create(*trainer_, "main", sgd, {table}));
  absl::Status refused = StepBy(*optimizer, table, {1}, 1);
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("weight_decay"));
  EXPECT_THAT(Read(*trainer_, table), Each(1));
}

TEST_F(DenseTableTest, OPT_40_SoDoesWeightDecayThatWasSetLater) {
  for (double momentum : {0.0, 0.5}) {
    RRef table = Must(
        trainer_->GetOrCreate("owner0", momentum == 0 ? "plain" : "moving", Full({3, 1}, 1), [] {
          CreateOptions options;
          options.requires_grad = true;
          return options;
        }()));
    Sgd sgd;
    sgd.lr = 0.5;
    sgd.momentum = momentum;
    auto optimizer = Must(DistributedOptimizer::Create(*trainer_, sgd, {table}));
    ASSERT_TRUE(optimizer->SetOptions(0, {{"weight_decay", 0.5}}).ok());
    absl::Status refused = StepBy(*optimizer, table, {1}, 1);
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("weight_decay"));
    EXPECT_THAT(Read(*trainer_, table), Each(1));
    // The step is accepted again once the weight decay is back at 0.
    ASSERT_TRUE(optimizer->SetOptions(0, {{"weight_decay", 0}}).ok());
    EXPECT_TRUE(StepBy(*optimizer, table, {1}, 1).ok());
    EXPECT_THAT(Read(*trainer_, table), ElementsAre(1, 0.5, 1));
  }
}

TEST_F(RowsStepsTest, BoundedStalenessHoldsForRowsToo) {
  RRef table = Table(3, 1);
  OptimizerSettings settings;
  settings.mode = UpdateMode::BoundedStaleness(1);
  auto optimizer = Must(DistributedOptimizer::Create(*trainer_, Sgd{}, {table}, settings));
  Context old = Must(trainer_->NewContext());
  auto rows = Must(trainer_->LookUpRows({{table, Ids({0})}}, old));
  ASSERT_TRUE(old.Backward({Sum(rows[0])}).ok());
  ASSERT_TRUE(StepBy(*optimizer, table, {1}, 1).ok());
  StepOutcome behind = optimizer->StepDetailed(old);
  ASSERT_TRUE(behind.status().ok()) << behind.status();
  EXPECT_EQ(behind.owners[0].max_staleness, 1u);
  absl::Status refused = optimizer->Step(old);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("'emb'"));
}

TEST_F(RowsStepsTest, ClippingByNormSeesSummedRows) {
  RRef table = Table(3, 1);
  Sgd sgd;
  sgd.lr = 1;
  auto optimizer = Must(DistributedOptimizer::Create(*trainer_, "main", sgd, {table}));
  Context context = Must(trainer_->NewContext());
  auto rows = Must(trainer_->LookUpRows({{table, Ids({1, 1})}}, context));
  ASSERT_TRUE(context.Backward({Sum(rows[0] * 2.0)}).ok());
  StepOptions options;
  options.clip_norm = 1;  // the norm of the gradient is 4
  ASSERT_TRUE(optimizer->StepDetailed(context, options).status().ok());
  EXPECT_NEAR(Rows(table, {1})[0], 0, 1e-5);
}

TEST_F(RowsStepsTest, GradientsOfSeveralContextsAreOneStep) {
  RRef table = Table(3, 1);
  RowwiseAdagrad adagrad;
  adagrad.lr = 1;
  auto optimizer = Must(DistributedOptimizer::Create(*trainer_, "main", adagrad, {table}));
  std::vector<Context> contexts;
  for (int i = 0; i < 2; ++i) {
    contexts.push_back(Must(trainer_->NewContext()));
    auto rows = Must(trainer_->LookUpRows({{table, Ids({1, i})}}, contexts[i]));
    ASSERT_TRUE(contexts[i].Backward({Sum(rows[0])}).ok());
  }
  ASSERT_TRUE(optimizer->StepDetailed({&contexts[0], &contexts[1]}).status().ok());
  // Rows 0 and 1 have the gradients 1 and 3. The first step of Adagrad moves a row by lr, whatever
  // the size of its gradient.
  EXPECT_THAT(Rows(table, {0, 1, 2}), Pointwise(FloatNear(1e-6f), {0.0f, 0.0f, 1.0f}));
}

TEST_F(RowsStepsTest, OptionsThatRowsDoNotAllowAreRefusedLaterToo) {
  RRef table = Table(3, 1);
  auto optimizer = Must(DistributedOptimizer::Create(*trainer_, "main", Sgd{}, {table}));
  EXPECT_TRUE(optimizer->SetOptions(0, {{"lr", 0.5}}).ok());
  EXPECT_EQ(optimizer->SetOptions(0, {{"weight_decay", 0.5}}).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(RowsStepsTest, NanAndInfinityPassThroughInTheirRows) {
  RRef table = Table(3, 1);
  Sgd sgd;
  auto optimizer = Must(DistributedOptimizer::Create(*trainer_, "main", sgd, {table}));
  ASSERT_TRUE(StepBy(*optimizer, table, {1}, std::numeric_limits<double>::quiet_NaN()).ok());
  EXPECT_TRUE(std::isnan(Rows(table, {1})[0]));
  EXPECT_THAT(Rows(table, {0, 2}), Each(1));
}

TEST_F(RowsStepsTest, ConcurrentTrainersLoseNoUpdateAndReadWholeRows) {
  constexpr int kTrainers = 4;
  constexpr int kSteps = 25;
  constexpr int64_t kWidth = 33;
  RRef table = Must(trainer_->GetOrCreate("owner0", "emb", Zeros({3, kWidth}), AsRows()));
  Sgd sgd;
  sgd.lr = 1;
  std::atomic<bool> stop{false};
  std::thread reader([&] {
    auto trainer = StartTrainer("reader", {owner0_.address()});
    RRef mine = Must(trainer->Lookup("owner0", "emb"));
    while (!stop) {
      const auto rows = Elements(Must(trainer->LookUpRows({{mine, Ids({0, 1, 2})}}))[0].tensor());
      for (size_t i = 0; i < rows.size(); ++i) ASSERT_EQ(rows[i], rows[i / kWidth * kWidth]);
    }
  });
  std::vector<std::thread> threads;
  for (int t = 0; t < kTrainers; ++t) {
    threads.emplace_back([&, t] {
      auto trainer = StartTrainer(absl::StrCat("worker", t), {owner0_.address()});
      RRef mine = Must(trainer->Lookup("owner0", "emb"));
      auto optimizer = Must(DistributedOptimizer::Create(*trainer, "main", sgd, {mine}));
      for (int step = 0; step < kSteps; ++step) {
        Context context = Must(trainer->NewContext());
        auto rows = Must(trainer->LookUpRows({{mine, Ids({t % 2, 2, 2})}}, context));
        EXPECT_TRUE(context.Backward({Sum(rows[0])}).ok());
        EXPECT_TRUE(optimizer->Step(context).ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  stop = true;
  reader.join();
  const auto rows = Rows(table, {0, 1, 2});
  EXPECT_EQ(rows[0], -kTrainers / 2 * kSteps);
  EXPECT_EQ(rows[kWidth], -kTrainers / 2 * kSteps);
  EXPECT_EQ(rows[2 * kWidth], -kTrainers * 2 * kSteps);
}

}  // namespace
}  // namespace psd
