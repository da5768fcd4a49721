// Saves and loads beside training and beside each other, and those that cannot succeed.

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "client/checkpoint.h"
#include "core/base/memory_budget.h"
#include "core/checkpoint/save_reader.h"
#include "core/runtime/runtime.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/checkpoint_world.h"
#include "tests/client/test_world.h"
#include "tests/core/checkpoint/fake_file_system.h"

namespace psd {
namespace {

using checkpoint::SaveReader;
using ::testing::HasSubstr;
using CheckpointFaultsTest = CheckpointTest;

INSTANTIATE_TEST_SUITE_P(Ways, CheckpointFaultsTest, ::testing::Bool(),
                         [](const auto& way) { return way.param ? "Own" : "Streamed"; });

// With momentum 1 and a gradient of 1 everywhere, n steps leave a momentum of n and a parameter of
// -n(n+1)/2. The count of steps, the momentum and the parameter of a save must agree at any time.
TEST_P(CheckpointFaultsTest, EveryParameterIsFromBetweenTwoSteps) {
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

TEST_P(CheckpointFaultsTest, WhatDoesNotFitIsRefusedBeforeAnythingChanges) {
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

TEST_P(CheckpointFaultsTest, AFullOwnerIsToldBeforehand) {
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

TEST_P(CheckpointFaultsTest, DiskFullOrStoppedLeavesTheLastSave) {
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

TEST_P(CheckpointFaultsTest, DamageIsRefusedBeforeAnythingChanges) {
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

TEST_P(CheckpointFaultsTest, ProgressEndsAtTheTotal) {
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
TEST_P(CheckpointFaultsTest, ADroppedParameterIsLeftOut) {
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
TEST_P(CheckpointFaultsTest, SavesAndLoadsOfOneWorkerAtTheSameTime) {
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

TEST_P(CheckpointFaultsTest, NobodyThere) {
  auto worker = StartJob({"a"});
  EXPECT_EQ(LoadModel(*worker, Loading()).status().code(), absl::StatusCode::kNotFound);
  SaveOptions saving = Saving();
  saving.owners = {"nobody"};
  EXPECT_EQ(SaveModel(*worker, saving).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(SaveModel(*worker, SaveOptions{}).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace psd
