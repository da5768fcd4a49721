#include "client/checkpoint.h"

#include <atomic>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/memory_budget.h"
#include "core/checkpoint/save_folder.h"
#include "core/checkpoint/save_reader.h"
#include "core/runtime/runtime.h"
#include "core/store/store.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/test_world.h"
#include "tests/core/checkpoint/fake_file_system.h"
#include "tests/core/checkpoint/fake_root.h"
#include "tests/core/store/changing_for_tests.h"

namespace psd {
namespace {

using checkpoint::FakeFileSystem;
using checkpoint::SaveReader;
using ::testing::HasSubstr;

// Parameters of different sizes with an optimizer. A step depends on every element and on the
// optimizer's state.
class Model {
 public:
  Model(Worker& worker, std::vector<std::string> owners, const OptimizerSpec& spec)
      : worker_(worker) {
    for (int i = 0; i < 6; ++i) {
      std::vector<float> elements(static_cast<size_t>(3 + 50 * i));
      for (size_t k = 0; k < elements.size(); ++k)
        elements[k] = 0.01f * static_cast<float>((k * 37 + static_cast<size_t>(i)) % 100);
      const Tensor start = Tensor::Of<float>(Shape{static_cast<int64_t>(elements.size())},
                                             absl::MakeConstSpan(elements));
      CreateOptions options;
      options.requires_grad = true;
      const std::string name = "layer" + std::to_string(i) + "/w";
      const std::string& owner = owners[static_cast<size_t>(i) % owners.size()];
      const bool exists = worker.Lookup(owner, name).ok();
      rrefs_.push_back(exists ? Must(worker.Lookup(owner, name))
                              : MakeParameter(worker, owner, name, start));
    }
    optimizer_ = Must(DistributedOptimizer::Create(worker, "main", spec, rrefs_));
  }

  // Makes a step for the loss sum(w * w * c).
  void Step(double c) {
    Context context = Must(worker_.NewContext());
    std::vector<Variable> parameters = Must(worker_.ToHere(rrefs_, context));
    std::vector<Variable> roots;
    for (const Variable& w : parameters) roots.push_back(Sum(w * w * c));
    ASSERT_TRUE(context.Backward(roots).ok());
    const absl::Status stepped = optimizer_->Step(context);
    ASSERT_TRUE(stepped.ok()) << stepped;
  }
  void Steps(int count) {
    for (int i = 0; i < count; ++i) Step(0.5 + 0.25 * i);
  }

  std::vector<std::string> Elements() {
    std::vector<std::string> elements;
    for (const Value& value : Must(worker_.ToHere(rrefs_)))
      elements.emplace_back(value.As<Variable>()->tensor().AsBuffer().view());
    return elements;
  }

 private:
  Worker& worker_;
  std::vector<RRef> rrefs_;
  std::unique_ptr<DistributedOptimizer> optimizer_;
};

void Host(worker::Runtime& runtime, const std::string& name, store::Value value) {
  Must(runtime.store()
           .GetOrCreate(store::ChangingForTests::Make(), name, {},
                        [&] { return absl::StatusOr<store::Value>(value); })
           .Wait());
}

// The parameter says how saves are written: by the owners themselves (true), or by the worker that
// saves, which the owners stream to (false).
class CheckpointTest : public ::testing::TestWithParam<bool> {
 protected:
  SaveOptions Saving() {
    SaveOptions options;
    options.dir = "saves";
    options.files = disk_;
    options.batch_bytes = 1000;  // makes several batches
    return options;
  }
  LoadOptions Loading() {
    LoadOptions options;
    options.dir = "saves";
    options.files = disk_;
    options.batch_bytes = 1000;
    return options;
  }
  // Starts empty owners of these names, and a trainer that is attached to them.
  std::unique_ptr<Worker> StartJob(const std::vector<std::string>& names) {
    std::vector<OwnerAddress> addresses;
    for (const std::string& name : names) {
      worker::RuntimeOptions options;
      if (GetParam()) options.checkpoint_root = std::make_shared<checkpoint::FakeRoot>(disk_);
      owners_.push_back(std::make_unique<TestOwner>(name, std::move(options)));
      addresses.push_back(owners_.back()->address());
    }
    return StartTrainer("trainer", addresses);
  }

  std::shared_ptr<FakeFileSystem> disk_ = std::make_shared<FakeFileSystem>();
  std::vector<std::unique_ptr<TestOwner>> owners_;
};

INSTANTIATE_TEST_SUITE_P(Ways, CheckpointTest, ::testing::Bool(),
                         [](const auto& way) { return way.param ? "Own" : "Streamed"; });

struct Continued {
  std::vector<std::string> at_save;
  std::vector<std::string> three_later;
};

// Takes five steps, saves, and takes three more.
Continued TrainAndSave(Worker& worker, const std::vector<std::string>& owners,
                       const OptimizerSpec& spec, const SaveOptions& options) {
  Model model(worker, owners, spec);
  model.Steps(5);
  const SaveSummary saved = Must(SaveModel(worker, options));
  EXPECT_EQ(saved.values, 6u);
  EXPECT_EQ(saved.optimizers, 1u);
  Continued continued;
  continued.at_save = model.Elements();
  model.Steps(3);
  continued.three_later = model.Elements();
  return continued;
}

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

// With momentum 1 and a gradient of 1 everywhere, n steps leave a momentum of n and a parameter of
// -n(n+1)/2. The count of steps, the momentum and the parameter of a save must agree at any time.
TEST_P(CheckpointTest, EveryParameterIsFromBetweenTwoSteps) {
  auto saver = StartJob({"a"});
  auto trainer = StartTrainer("trainer2", {owners_[0]->address()});
  std::vector<RRef> rrefs;
  for (int i = 0; i < 8; ++i)
    rrefs.push_back(MakeParameter(*trainer, "a", "w" + std::to_string(i),
                                  Must(Tensor::Zeros(Shape{5000}, DType::kF32))));
  Sgd sgd;
  sgd.lr = 1;
  sgd.momentum = 1;
  auto optimizer = Must(DistributedOptimizer::Create(*trainer, "main", sgd, rrefs));
  std::atomic<bool> stop{false};
  std::atomic<int> steps{0};
  std::thread training([&] {
    while (!stop) {
      Context context = Must(trainer->NewContext());
      std::vector<Variable> roots;
      for (const Variable& w : Must(trainer->ToHere(rrefs, context))) roots.push_back(Sum(w));
      if (!context.Backward(roots).ok() || !optimizer->Step(context).ok()) std::abort();
      ++steps;
    }
  });
  for (int round = 0; round < 5; ++round) {
    const int before = steps;
    while (steps < before + 3) std::this_thread::yield();
    SaveOptions options = Saving();
    options.name = "round" + std::to_string(round);
    options.batch_bytes = 100'000;
    if (round % 2 == 1) options.whole_bytes = options.batch_bytes = 7000;  // in pieces
    options.busy_share = 1;
    ASSERT_TRUE(SaveModel(*saver, options).ok());
    auto save = Must(SaveReader::Open(disk_, "saves/" + options.name));
    ASSERT_TRUE(save->Verify(nullptr).ok());
    const checkpoint::SavedOptimizer& main = save->index().optimizers[0];
    for (size_t i = 0; i < main.parameters.size(); ++i) {
      const auto n = static_cast<float>(main.parameters[i].steps);
      const Tensor momentum = Must(save->ReadState(main, i, main.parameters[i].slots.at(0)));
      const checkpoint::SavedValue* value = nullptr;
      for (const auto& each : save->index().values)
        if (each.name == main.parameters[i].parameter) value = &each;
      const Tensor elements = Must(save->ReadValue(*value));
      EXPECT_EQ(value->version, main.parameters[i].steps + 2) << "created, assigned, stepped";
      for (int64_t k = 0; k < 5000; ++k) {
        ASSERT_EQ(momentum.data<float>()[k], n);
        ASSERT_EQ(elements.data<float>()[k], -n * (n + 1) / 2);
      }
    }
  }
  stop = true;
  training.join();
}

TEST_P(CheckpointTest, WhatDoesNotFitIsRefusedBeforeAnythingChanges) {
  auto first = StartJob({"a", "b"});
  TrainAndSave(*first, {"a", "b"}, Adam{}, Saving());
  const auto refuse = [&](Worker& worker, const std::string& says) {
    const absl::Status loaded = LoadModel(worker, Loading()).status();
    EXPECT_EQ(loaded.code(), absl::StatusCode::kFailedPrecondition) << loaded;
    EXPECT_THAT(std::string(loaded.message()), HasSubstr(says));
    EXPECT_THAT(std::string(loaded.message()), HasSubstr("nothing was loaded"));
  };
  {
    // One owner has a parameter of another shape, so the other owner stays empty too.
    auto job = StartJob({"a", "b"});
    MakeParameter(*job, "b", "layer1/w", Tensor::Of<float>(Shape{2}, {1, 2}));
    refuse(*job, "'layer1/w' exists as parameter f32[2] that requires grad");
    EXPECT_TRUE(Must(job->List("a")).empty());
    EXPECT_EQ(Must(job->List("b")).size(), 1u);
  }
  {
    auto job = StartJob({"a", "b"});
    MakeParameter(*job, "a", "main", Tensor::Of<float>(Shape{2}, {1, 2}));
    refuse(*job, "'main' exists as parameter");
  }
  {
    auto job = StartJob({"a", "b"});
    Model other(*job, {"a", "b"}, Sgd{0.1, 0.9});
    refuse(*job, "'main' exists as sgd");
  }
  {
    auto job = StartJob({"a", "b"});
    Adam adam;
    adam.lr = 0.5;
    Model other(*job, {"a", "b"}, adam);
    refuse(*job, "lr=0.5");
  }
  {
    auto job = StartJob({"a", "b"});
    const RRef w = MakeParameter(*job, "a", "layer0/w", Tensor::Of<float>(Shape{3}, {1, 2, 3}));
    auto partial = Must(DistributedOptimizer::Create(*job, "main", Adam{}, {w}));
    refuse(*job, "steps 1 parameters here");
  }
}

TEST_P(CheckpointTest, AFullOwnerIsToldBeforehand) {
  auto first = StartJob({"a"});
  MakeParameter(*first, "a", "w", Must(Tensor::Zeros(Shape{100'000}, DType::kF32)));
  ASSERT_TRUE(SaveModel(*first, Saving()).ok());
  worker::RuntimeOptions small;
  small.memory = MemoryBudget::Create(100'000);
  TestOwner owner("a", small);
  auto worker = StartTrainer("t", {owner.address()});
  const absl::Status loaded = LoadModel(*worker, Loading()).status();
  EXPECT_EQ(loaded.code(), absl::StatusCode::kResourceExhausted) << loaded;
  EXPECT_TRUE(Must(worker->List("a")).empty());
}

TEST_P(CheckpointTest, DiskFullOrStoppedLeavesTheLastSave) {
  auto first = StartJob({"a", "b"});
  const Continued expected = TrainAndSave(*first, {"a", "b"}, Adam{}, Saving());
  uint64_t used = 0;
  for (const auto& [path, bytes] : disk_->files()) used += bytes.size();
  disk_->capacity = used + 4000;
  disk_->claims_free = 1 << 30;
  const absl::Status full = SaveModel(*first, Saving()).status();
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted) << full;
  disk_->capacity = UINT64_MAX;
  SaveOptions stopped = Saving();
  stopped.progress = [](const TransferProgress& progress) { return progress.bytes < 3000; };
  EXPECT_EQ(SaveModel(*first, stopped).status().code(), absl::StatusCode::kCancelled);
  uint64_t left = 0;
  for (const auto& [path, bytes] : disk_->files()) left += bytes.size();
  EXPECT_EQ(left, used);
  auto second = StartJob({"a", "b"});
  ASSERT_TRUE(LoadModel(*second, Loading()).ok());
  EXPECT_EQ(Model(*second, {"a", "b"}, Adam{}).Elements(), expected.at_save);
}

TEST_P(CheckpointTest, DamageIsRefusedBeforeAnythingChanges) {
  auto first = StartJob({"a"});
  TrainAndSave(*first, {"a"}, Adam{}, Saving());
  auto second = StartJob({"a"});
  for (const auto& [path, bytes] : disk_->files()) {
    if (path == "saves/latest") continue;
    std::string bad = bytes;
    bad[bad.size() / 2] = static_cast<char>(bad[bad.size() / 2] ^ 1);
    disk_->Put(path, bad);
    EXPECT_FALSE(LoadModel(*second, Loading()).ok()) << path;
    disk_->Put(path, bytes);
  }
  EXPECT_TRUE(Must(second->List("a")).empty());
}

TEST_P(CheckpointTest, ProgressEndsAtTheTotal) {
  auto first = StartJob({"a", "b"});
  uint64_t last = 0, total = 0;
  SaveOptions saving = Saving();
  saving.progress = [&](const TransferProgress& progress) {
    EXPECT_GE(progress.bytes, last);
    last = progress.bytes;
    total = progress.total_bytes;
    return true;
  };
  TrainAndSave(*first, {"a", "b"}, Adam{}, saving);
  EXPECT_EQ(last, total);
  EXPECT_GT(total, 0u);
}

// One name was dropped while its optimizer still steps the value. Another name was dropped and then
// given to a new value.
TEST_P(CheckpointTest, ADroppedParameterIsLeftOut) {
  auto first = StartJob({"a"});
  Model model(*first, {"a"}, Adam{});
  model.Steps(2);
  ASSERT_TRUE(first->Drop("a", "layer1/w").ok());
  ASSERT_TRUE(first->Drop("a", "layer2/w").ok());
  MakeParameter(*first, "a", "layer2/w", Tensor::Of<float>({1}, {5}));
  const auto saved = SaveModel(*first, Saving());
  ASSERT_TRUE(saved.ok()) << saved.status();
  EXPECT_EQ(saved->values, 5u);
  ASSERT_EQ(saved->left_out.size(), 2u);
  EXPECT_THAT(saved->left_out[0], HasSubstr("'layer1/w', was dropped"));
  EXPECT_THAT(saved->left_out[1], HasSubstr("'layer2/w', was dropped"));
  auto second = StartJob({"a"});
  const auto loaded = LoadModel(*second, Loading());
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(Read(*second, Must(second->Lookup("a", "layer2/w"))), std::vector<float>{5});
}

// Each progress report of the first save runs a second save, and then a load of that second save.
TEST_P(CheckpointTest, SavesAndLoadsOfOneWorkerAtTheSameTime) {
  auto first = StartJob({"a", "b"});
  Model model(*first, {"a", "b"}, Adam{});
  model.Steps(2);
  const std::vector<std::string> before = model.Elements();
  const auto in_pieces = [](auto options) {
    options.whole_bytes = 1500;  // the larger half travels in pieces
    options.batch_bytes = 700;
    return options;
  };
  SaveOptions other = in_pieces(Saving());
  other.dir = "other";
  LoadOptions loading = in_pieces(Loading());
  loading.dir = "other";
  SaveOptions saving = in_pieces(Saving());
  int words = 0;
  bool loads = true;
  saving.progress = [&](const TransferProgress&) {
    other.name = "other" + std::to_string(++words);
    const absl::Status saved = SaveModel(*first, other).status();
    EXPECT_TRUE(saved.ok()) << saved;
    const absl::Status loaded = loads ? LoadModel(*first, loading).status() : absl::OkStatus();
    EXPECT_TRUE(loaded.ok()) << loaded;
    return true;
  };
  // The save runs to its end but is not published, because some of its values may be from before a
  // load and others from after it.
  const absl::Status beside_loads = SaveModel(*first, saving).status();
  EXPECT_EQ(beside_loads.code(), absl::StatusCode::kFailedPrecondition) << beside_loads;
  EXPECT_THAT(std::string(beside_loads.message()), HasSubstr("save again"));
  EXPECT_GT(words, 6);
  loads = false;
  const auto saved = SaveModel(*first, saving);
  ASSERT_TRUE(saved.ok()) << saved.status();
  EXPECT_GT(words, 12);
  auto second = StartJob({"a", "b"});
  ASSERT_TRUE(LoadModel(*second, Loading()).ok());
  EXPECT_EQ(Model(*second, {"a", "b"}, Adam{}).Elements(), before);
}

TEST_P(CheckpointTest, NobodyThere) {
  auto worker = StartJob({"a"});
  EXPECT_EQ(LoadModel(*worker, Loading()).status().code(), absl::StatusCode::kNotFound);
  SaveOptions saving = Saving();
  saving.owners = {"nobody"};
  EXPECT_EQ(SaveModel(*worker, saving).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(SaveModel(*worker, SaveOptions{}).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace psd
