// Values, optimizers and tables come back from a save, into the same owners and into others.

#include "client/checkpoint.h"

#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/runtime/runtime.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/checkpoint_world.h"
#include "tests/client/test_world.h"
#include "tests/core/checkpoint/fake_file_system.h"

namespace psd {
namespace {

using checkpoint::FakeFileSystem;

INSTANTIATE_TEST_SUITE_P(Ways, CheckpointTest, ::testing::Bool(),
                         [](const auto& way) { return way.param ? "Own" : "Streamed"; });

TEST_P(CheckpointTest, ContinuesWithTheSameNumbers) {
  for (const OptimizerSpec& spec :
       {OptimizerSpec(Adam{}), OptimizerSpec(Sgd{0.1, 0.9}), OptimizerSpec(Sgd{0.1})}) {
    disk_ = std::make_shared<FakeFileSystem>();
    auto first = StartJob({"a", "b"});
    const Continued expected = TrainAndSave(*first, {"a", "b"}, spec, Saving());
    // The save is loaded into the same owners, which are three steps ahead, and into empty owners
    // of the same names.
    ASSERT_TRUE(LoadModel(*first, Loading()).ok());
    auto second = StartJob({"a", "b"});
    const LoadSummary loaded = Must(LoadModel(*second, Loading()));
    EXPECT_EQ(loaded.values.at("a"), 3u);
    for (Worker* worker : {first.get(), second.get()}) {
      Model model(*worker, {"a", "b"}, spec);
      EXPECT_EQ(model.Elements(), expected.at_save);
      model.Steps(3);
      EXPECT_EQ(model.Elements(), expected.three_later) << spec.ToString();
    }
  }
}

// The limit on whole values is lowered, so that small values are treated like values that are too
// large for a message.
TEST_P(CheckpointTest, LargeValuesTravelInPieces) {
  for (const OptimizerSpec& spec : {OptimizerSpec(Adam{}), OptimizerSpec(Sgd{0.1})}) {
    disk_ = std::make_shared<FakeFileSystem>();
    SaveOptions saving = Saving();
    saving.whole_bytes = 1500;  // the larger half of the values travels in pieces
    saving.batch_bytes = 333;   // not a multiple of the size of an element
    LoadOptions loading = Loading();
    loading.whole_bytes = 1500;
    loading.batch_bytes = 333;
    auto first = StartJob({"a", "b"});
    Host(owners_[owners_.size() - 2]->runtime(), "ids",
         Must(Tensor::Full(Shape{50, 9}, DType::kI64, 7)));
    Host(owners_[owners_.size() - 2]->runtime(), "empty",
         Must(Tensor::Full(Shape{0, 9}, DType::kF64, 7)));
    Model model(*first, {"a", "b"}, spec);
    model.Steps(5);
    uint64_t last = 0, total = 0;
    saving.progress = [&](const TransferProgress& progress) {
      last = progress.bytes;
      total = progress.total_bytes;
      return true;
    };
    ASSERT_TRUE(SaveModel(*first, saving).ok());
    EXPECT_EQ(last, total);
    const std::vector<std::string> at_save = model.Elements();
    model.Steps(3);
    // The save in pieces is also loaded as whole values, each time over existing values.
    for (const LoadOptions& options : {loading, Loading(), loading}) {
      const auto loaded = LoadModel(*first, options);
      ASSERT_TRUE(loaded.ok()) << loaded.status();
      EXPECT_EQ(model.Elements(), at_save);
    }
    auto second = StartJob({"z"});
    const auto loaded = LoadModel(*second, loading);
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    for (const char* name : {"ids", "empty"}) {
      const auto there = Must(second->ToHere({Must(second->Lookup("z", name))}));
      const auto here = Must(first->ToHere({Must(first->Lookup("a", name))}));
      EXPECT_EQ(there[0].As<Variable>()->tensor().ToString(),
                here[0].As<Variable>()->tensor().ToString());
      EXPECT_EQ(there[0].As<Variable>()->tensor().AsBuffer().view(),
                here[0].As<Variable>()->tensor().AsBuffer().view());
    }
    Model continued(*second, {"z"}, spec), again(*first, {"a", "b"}, spec);
    continued.Steps(3);
    again.Steps(3);
    EXPECT_EQ(continued.Elements(), again.Elements());
  }
}

TEST_P(CheckpointTest, LoadsIntoAnyNumberOfOwners) {
  auto first = StartJob({"a", "b"});
  const Continued expected = TrainAndSave(*first, {"a", "b"}, Adam{}, Saving());
  auto one = StartJob({"z"});
  ASSERT_TRUE(LoadModel(*one, Loading()).ok());
  Model model(*one, {"z"}, Adam{});
  EXPECT_EQ(model.Elements(), expected.at_save);
  model.Steps(3);
  EXPECT_EQ(model.Elements(), expected.three_later);

  // Then it is loaded into four owners, and from there into one again.
  auto four = StartJob({"p", "q", "r", "s"});
  EXPECT_EQ(Must(LoadModel(*four, Loading())).values.size(), 4u);
  SaveOptions again = Saving();
  again.dir = "again";
  EXPECT_EQ(Must(SaveModel(*four, again)).values, 6u);
  auto last = StartJob({"z"});
  LoadOptions from_again = Loading();
  from_again.dir = "again";
  ASSERT_TRUE(LoadModel(*last, from_again).ok());
  Model continued(*last, {"z"}, Adam{});
  continued.Steps(3);
  EXPECT_EQ(continued.Elements(), expected.three_later);
}

TEST_P(CheckpointTest, GroupsChangedOptionsSchedulesAndScalesComeBack) {
  const auto build = [](Worker& worker) {
    std::vector<psd::ParameterGroup> groups(2);
    for (int i = 0; i < 4; ++i) {
      const std::string owner = i % 2 == 0 ? "a" : "b", name = "w" + std::to_string(i);
      auto known = worker.Lookup(owner, name);
      groups[static_cast<size_t>(i / 2)].parameters.push_back(
          known.ok() ? *known : MakeParameter(worker, owner, name, Tensor::Of<float>({1}, {1})));
    }
    groups[1].options = {{"lr", 0.25}};
    OptimizerSettings settings;
    settings.schedule = Schedule::Step(2, 0.5).WithWarmup(3, 0.25);
    settings.loss_scaling = LossScaling::Dynamic(1024);
    return Must(DistributedOptimizer::Create(worker, "main", Adam{}, groups, settings));
  };
  const auto step = [](Worker& worker, DistributedOptimizer& optimizer) {
    std::vector<RRef> rrefs;
    for (int i = 0; i < 4; ++i)
      rrefs.push_back(Must(worker.Lookup(i % 2 == 0 ? "a" : "b", "w" + std::to_string(i))));
    Context context = Must(worker.NewContext());
    std::vector<Variable> roots;
    for (const Variable& w : Must(worker.ToHere(rrefs, context)))
      roots.push_back(Sum(w * w * optimizer.LossScale()));
    EXPECT_TRUE(context.Backward(roots).ok());
    StepOptions options;
    options.loss_scale = optimizer.LossScale();
    const absl::Status stepped = optimizer.Step(context, options);
    EXPECT_TRUE(stepped.ok()) << stepped;
    std::vector<float> elements;
    for (const Value& value : Must(worker.ToHere(rrefs)))
      elements.push_back(*value.As<Variable>()->tensor().data<float>());
    return elements;
  };
  auto first = StartJob({"a", "b"});
  auto optimizer = build(*first);
  step(*first, *optimizer);
  ASSERT_TRUE(optimizer->SetOptions(0, {{"lr", 0.125}}).ok());
  step(*first, *optimizer);
  ASSERT_TRUE(SaveModel(*first, Saving()).ok());
  std::vector<std::vector<float>> expected;
  for (int i = 0; i < 3; ++i) expected.push_back(step(*first, *optimizer));

  auto second = StartJob({"a", "b"});
  ASSERT_TRUE(LoadModel(*second, Loading()).ok());
  auto continued = build(*second);
  EXPECT_EQ(Must(continued->Options(0)).options.at("lr"), 0.125);
  EXPECT_EQ(Must(continued->Options(1)).options.at("lr"), 0.25);
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(step(*second, *continued), expected[static_cast<size_t>(i)]);
  EXPECT_TRUE(continued->SetOptions(1, {{"lr", 1.5}}).ok());
  EXPECT_EQ(Must(continued->Options(1)).options.at("lr"), 1.5);
}

// Only the lead changes the loss scale, and it is saved whichever owner comes first in the save.
TEST_P(CheckpointTest, TheLossScaleGoesOnWithItsGoodSteps) {
  const auto build = [](Worker& worker) {
    std::vector<RRef> parameters;
    for (const char* owner : {"b", "a"})
      parameters.push_back(MakeParameter(worker, owner, "w", Tensor::Of<float>({1}, {1})));
    OptimizerSettings settings;
    settings.loss_scaling = LossScaling::Dynamic(1024);
    settings.loss_scaling.growth_interval = 3;
    return std::make_pair(parameters, Must(DistributedOptimizer::Create(worker, "main", Adam{},
                                                                        parameters, settings)));
  };
  const auto step = [](Worker& worker, const auto& model, double factor) {
    Context context = Must(worker.NewContext());
    auto values = Must(worker.ToHere({model.first[0]}, context));
    const double scale = model.second->LossScale();
    EXPECT_TRUE(context.Backward({Sum(values[0] * (factor * scale))}).ok());
    StepOptions options;
    options.loss_scale = scale;
    const absl::Status stepped = model.second->Step(context, options);
    EXPECT_TRUE(stepped.ok()) << stepped;
  };
  auto first = StartJob({"b", "a"});
  auto model = build(*first);
  step(*first, model, std::numeric_limits<double>::infinity());
  for (int i = 0; i < 2; ++i) step(*first, model, 1);
  EXPECT_EQ(model.second->LossScale(), 512);
  SaveOptions saving = Saving();
  saving.owners = {"b", "a"};
  ASSERT_TRUE(SaveModel(*first, saving).ok());

  auto second = StartJob({"b", "a"});
  ASSERT_TRUE(LoadModel(*second, Loading()).ok());
  auto continued = build(*second);
  EXPECT_EQ(continued.second->LossScale(), 512);
  step(*second, continued, 1);  // the third step in a row without overflow
  EXPECT_EQ(continued.second->LossScale(), 1024);
}

TEST_P(CheckpointTest, RowsAndTheirStateComeBackInParts) {
  for (const OptimizerSpec& spec : {OptimizerSpec(RowwiseAdagrad{}), OptimizerSpec(SparseAdam{}),
                                    OptimizerSpec(Sgd{0.1, 0.9})}) {
    disk_ = std::make_shared<FakeFileSystem>();
    CreateOptions as_rows;
    as_rows.rows = true;
    as_rows.requires_grad = true;
    const auto step = [&](Worker& worker, const std::string& owner, int number) {
      const RRef table = Must(
          worker.GetOrCreate(owner, "table", Uniform(Shape{100, 8}, -1, 1, /*seed=*/3), as_rows));
      auto optimizer = Must(DistributedOptimizer::Create(worker, "main", spec, {table}));
      Context context = Must(worker.NewContext());
      const Tensor ids = Tensor::Of<int64_t>(Shape{4}, {number, 7, 99, number});
      auto rows = Must(worker.LookUpRows({{table, ids}}, context));
      EXPECT_TRUE(context.Backward({Sum(rows[0] * rows[0])}).ok());
      const absl::Status stepped = optimizer->Step(context);
      EXPECT_TRUE(stepped.ok()) << stepped;
      std::vector<int64_t> all(100);
      for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int64_t>(i);
      auto table_now = Must(worker.LookUpRows(
          {{table, Tensor::Of<int64_t>(Shape{100}, absl::MakeConstSpan(all))}}, context));
      return std::string(table_now[0].tensor().AsBuffer().view());
    };
    auto first = StartJob({"a"});
    for (int i = 0; i < 4; ++i) step(*first, "a", i);
    const SaveSummary saved = Must(SaveModel(*first, Saving()));
    EXPECT_EQ(saved.values, 1u);
    EXPECT_TRUE(saved.left_out.empty());
    std::vector<std::string> expected;
    for (int i = 2; i < 6; ++i) expected.push_back(step(*first, "a", i));
    auto second = StartJob({"b"});
    const auto loaded = LoadModel(*second, Loading());
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    for (int i = 2; i < 6; ++i)
      EXPECT_EQ(step(*second, "b", i), expected[static_cast<size_t>(i - 2)]) << spec.ToString();
  }
}

TEST_P(CheckpointTest, RREF_40_OtherNamedValuesButNoReferences) {
  auto first = StartJob({"a"});
  worker::Runtime& owner = owners_[0]->runtime();
  Host(owner, "counts", Tensor::Of<int64_t>(Shape{2}, {4, 5}));
  Host(owner, "mean", Tensor::Of<double>(Shape{1}, {0.5}));
  Host(owner, "note", store::Value("hello"));
  Host(owner, "reference", Must(first->Lookup("a", "note")));
  const SaveSummary saved = Must(SaveModel(*first, Saving()));
  EXPECT_EQ(saved.values, 2u);
  EXPECT_THAT(saved.left_out,
              ::testing::ElementsAre("a: 'note' (string)", "a: 'reference' (rref)"));
  auto second = StartJob({"a"});
  ASSERT_TRUE(LoadModel(*second, Loading()).ok());
  ASSERT_TRUE(LoadModel(*second, Loading()).ok()) << "again, over what is there";
  for (const std::string name : {"counts", "mean"}) {
    const auto there = Must(second->ToHere({Must(second->Lookup("a", name))}));
    const auto here = Must(first->ToHere({Must(first->Lookup("a", name))}));
    EXPECT_EQ(there[0].As<Variable>()->tensor().AsBuffer().view(),
              here[0].As<Variable>()->tensor().AsBuffer().view());
  }
}

}  // namespace
}  // namespace psd
