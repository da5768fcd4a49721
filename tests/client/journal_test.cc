// The journal of an owner on which trainers create, assign, step, save, load and drop.

#include "core/change/journal.h"

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/checkpoint.h"
#include "client/psd.h"
#include "core/change/change.h"
#include "core/runtime/runtime.h"
#include "gtest/gtest.h"
#include "tests/client/test_world.h"
#include "tests/core/change/memory_journal.h"
#include "tests/core/change/workload.h"
#include "tests/core/checkpoint/fake_file_system.h"

namespace psd {
namespace {

using change::MemoryJournal;

constexpr int64_t kRows = 6, kWidth = 3;

worker::RuntimeOptions With(std::shared_ptr<change::Journal> journal) {
  worker::RuntimeOptions options;
  options.journal = std::move(journal);
  return options;
}

// One trainer's share of the work, on a thread of its own.
class JournalTrainer {
 public:
  JournalTrainer(const std::string& name, const OwnerAddress& owner)
      : name_(name), worker_(StartTrainer(name, {owner})) {
    CreateOptions parameter;
    parameter.requires_grad = true;
    CreateOptions rows = parameter;
    rows.rows = true;
    w_ = Must(worker_->GetOrCreate("owner", "w", Uniform({kRows, kWidth}, -1, 1, 5), parameter));
    v_ = Must(worker_->GetOrCreate("owner", "v", Normal({4}, 0, 1, 6), parameter));
    table_ = Must(worker_->GetOrCreate("owner", "table", Uniform({kRows, kWidth}, -1, 1, 7), rows));
    Join();
  }
  // Trainers join again after a load, because it begins new lives of the optimizers.
  void Join() {
    OptimizerSettings settings;
    mixed_ = Make("mixed", Adagrad{0.1}, {w_, table_}, settings);
    settings.mode = UpdateMode::Synchronous(2);
    rounds_ = Make("rounds", Sgd{0.1, 0.9}, {w_}, settings);
    settings.mode = UpdateMode::BoundedStaleness(50, UpdateMode::WhenStale::kWait);
    bounded_ = Make("bounded", Adam{0.01}, {v_}, settings);
    settings.mode = UpdateMode::Asynchronous();
    settings.loss_scaling = LossScaling::Dynamic(16);
    settings.schedule = Schedule::Cosine(100).WithWarmup(3);
    scaled_ = Make("scaled", AdamW{0.01}, {v_}, settings);
  }
  void Leave() {
    mixed_.reset();
    rounds_.reset();
    bounded_.reset();
    scaled_.reset();
  }

  // Every round has the same number of steps of each trainer.
  void Run(int rounds) {
    for (int i = 0; i < rounds; ++i, ++number_) {
      CreateAndDrop();
      Expect(Step(*mixed_, {w_, table_}, 1, Clipped()), "mixed");
      Expect(Step(*rounds_, {w_}, 0.5, {}), "rounds");
      Expect(Step(*bounded_, {v_}, 1, {}), "bounded");
      StepOptions scaled;
      scaled.loss_scale = scaled_->LossScale();
      const double overflow = number_ % 5 == 4 ? 1e308 : 1;
      Expect(Step(*scaled_, {v_}, scaled.loss_scale * overflow * overflow, scaled), "scaled");
      auto own = Must(DistributedOptimizer::Create(*worker_, Sgd{0.01}, std::vector<RRef>{w_, v_}));
      Expect(Step(*own, {w_, v_}, 0.1, {}), "private");
      Expect(mixed_->SetOptions(0, {{"lr", 0.1 / (1 + number_ % 7)}}), "options");
    }
  }
  Worker& worker() { return *worker_; }

 private:
  std::unique_ptr<DistributedOptimizer> Make(const std::string& name, const OptimizerSpec& spec,
                                             const std::vector<RRef>& parameters,
                                             const OptimizerSettings& settings) {
    return Must(DistributedOptimizer::Create(*worker_, name, spec, parameters, settings));
  }
  static void Expect(const absl::Status& status, const char* what) {
    EXPECT_TRUE(status.ok()) << what << ": " << status;
  }
  StepOptions Clipped() const {
    StepOptions options;
    if (number_ % 2 == 0) options.clip_norm = 0.5;
    if (number_ % 3 == 0) options.clip_value = 0.2;
    return options;
  }
  void CreateAndDrop() {
    const std::string name = absl::StrCat(name_, "/", number_);
    CreateOptions options;
    options.requires_grad = number_ % 2 == 0;
    options.rows = number_ % 3 == 0;
    const RRef made = Must(worker_->GetOrCreate(
        "owner", name, Uniform({2, 3}, -1, 1, static_cast<uint64_t>(number_)), options));
    Expect(
        worker_->Assign(made, Tensor::Of<float>({2, 3}, {1, 2, 3, 4, 5, float(number_)})).status(),
        "assign");
    if (number_ % 4 != 0) Expect(worker_->Drop("owner", name), "drop");
  }
  absl::Status Step(DistributedOptimizer& optimizer, const std::vector<RRef>& parameters,
                    double factor, const StepOptions& options) {
    PSD_ASSIGN_OR_RETURN(Context context, worker_->NewContext());
    std::vector<Variable> terms;
    for (const RRef& each : parameters) {
      if (each.value_id() == table_.value_id()) {
        PSD_ASSIGN_OR_RETURN(
            auto rows, worker_->LookUpRows(
                           {{each, Tensor::Of<int64_t>({3}, {number_ % kRows, 1, 1})}}, context));
        terms.push_back(Sum(rows[0] * rows[0]));
      } else {
        PSD_ASSIGN_OR_RETURN(auto values, worker_->ToHere({each}, context));
        terms.push_back(Sum(values[0] * values[0]));
      }
    }
    Variable loss = terms[0];
    for (size_t i = 1; i < terms.size(); ++i) loss = loss + terms[i];
    PSD_RETURN_IF_ERROR(context.Backward({loss * factor}));
    return optimizer.Step(context, options);
  }

  const std::string name_;
  const std::unique_ptr<Worker> worker_;
  RRef w_, v_, table_;
  std::unique_ptr<DistributedOptimizer> mixed_, rounds_, bounded_, scaled_;
  int64_t number_ = 0;
};

TEST(JournalTest, WhatTrainersDoIsDescribed) {
  const auto journal = std::make_shared<MemoryJournal>();
  TestOwner owner("owner", With(journal));
  std::vector<std::unique_ptr<JournalTrainer>> trainers;
  for (const char* name : {"trainer0", "trainer1"})
    trainers.push_back(std::make_unique<JournalTrainer>(name, owner.address()));
  const auto run = [&](int rounds) {
    std::vector<std::thread> threads;
    for (const auto& trainer : trainers) threads.emplace_back([&] { trainer->Run(rounds); });
    for (std::thread& thread : threads) thread.join();
  };

  run(30);
  SaveOptions save;
  save.dir = "saves";
  save.files = std::make_shared<checkpoint::FakeFileSystem>();
  Must(SaveModel(trainers[0]->worker(), save));
  run(15);
  for (const auto& trainer : trainers) trainer->Leave();
  LoadOptions load;
  load.dir = save.dir;
  load.files = save.files;
  load.batch_bytes = 40;  // the table arrives in parts
  Must(LoadModel(trainers[1]->worker(), load));
  for (const auto& trainer : trainers) trainer->Join();
  run(10);

  EXPECT_GE(journal->count<change::CreateValue>(), 100u);
  EXPECT_GE(journal->count<change::DropName>(), 70u);
  EXPECT_GE(journal->count<change::AssignValue>(), 100u);
  EXPECT_GE(journal->count<change::CreateOptimizer>(), 100u);  // mostly private ones
  EXPECT_GE(journal->count<change::LoadValue>(), 3u);
  EXPECT_GE(journal->count<optim::StepChange>(), 400u);
  EXPECT_GE(journal->count<optim::OptionsChange>(), 100u);
  EXPECT_GE(journal->count<optim::LifeChange>(), 4u);
  change::LocalOwner again(nullptr, 4711);
  const absl::Status replayed = change::ReplayAll(journal->bytes(), again.ForReplay());
  ASSERT_TRUE(replayed.ok()) << replayed;
  EXPECT_EQ(change::TextOf(*again.store), change::TextOf(owner.runtime().store()));
}

}  // namespace
}  // namespace psd
