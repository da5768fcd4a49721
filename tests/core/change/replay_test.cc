// Changes of every kind, by several threads at random, are written as bytes, and a fresh process
// that applies them to an empty owner has the same contents, bit for bit.

#include "core/change/replay.h"

#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/change/journal_format.h"
#include "core/optim/owner/owner_optimizer.h"
#include "core/store/store.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/psd/v1/journal.pb.h"
#include "tests/core/change/memory_journal.h"
#include "tests/core/change/workload.h"

namespace psd::change {
namespace {

using ::testing::HasSubstr;

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

void WriteFile(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

// Applies the journal in `file` to an empty owner and describes its contents.
int ReplayFile(const std::string& file) {
  LocalOwner owner(nullptr, 4711);
  const absl::Status replayed = ReplayAll(ReadFile(file), owner.ForReplay());
  WriteFile(file + ".replayed", replayed.ok() ? TextOf(*owner.store) : replayed.ToString());
  return replayed.ok() ? 0 : 1;
}

std::string ReplayInAFreshProcess(const std::string& journal) {
  char self[4096];
  const ssize_t size = readlink("/proc/self/exe", self, sizeof(self) - 1);
  EXPECT_GT(size, 0);
  const std::string file = ::testing::TempDir() + "/journal";
  WriteFile(file, journal);
  const std::string command =
      absl::StrCat("'", std::string(self, static_cast<size_t>(size)), "' --replay '", file, "'");
  EXPECT_EQ(std::system(command.c_str()), 0);
  return ReadFile(file + ".replayed");
}

TEST(ReplayTest, AFreshProcessHasTheSameBits) {
  constexpr int kThreads = 3;
  MemoryJournal journal;
  RandomTrainer::Counts counts;
  std::string contents;
  {
    LocalOwner owner(&journal, 99);
    std::vector<std::unique_ptr<RandomTrainer>> trainers;
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; ++i)
      trainers.push_back(std::make_unique<RandomTrainer>(owner, i, counts));
    for (const auto& trainer : trainers)
      threads.emplace_back([&trainer] { trainer->Run(/*changes=*/3000); });
    for (std::thread& thread : threads) thread.join();
    contents = TextOf(*owner.store);
  }

  constexpr int kEach = 100;
  EXPECT_GE(journal.count<CreateValue>(), kEach);
  EXPECT_GE(journal.count<CreateOptimizer>(), kEach);
  EXPECT_GE(journal.count<DropName>(), kEach);
  EXPECT_GE(journal.count<AssignValue>(), kEach);
  EXPECT_GE(journal.count<LoadValue>(), kEach);
  EXPECT_GE(journal.count<optim::StepChange>(), kEach);
  EXPECT_GE(journal.count<optim::OptionsChange>(), kEach);
  EXPECT_GE(journal.count<optim::LifeChange>(), kEach);
  for (size_t i = 0; i < counts.types.size(); ++i)
    EXPECT_GE(counts.types[i], kEach) << RandomTrainer::kTypes[i];
  for (size_t i = 0; i < counts.modes.size(); ++i) EXPECT_GE(counts.modes[i], kEach) << i;
  EXPECT_GE(counts.rows, kEach);
  EXPECT_GE(counts.sparse, kEach);
  EXPECT_GE(counts.scheduled, kEach);
  EXPECT_GE(counts.skipped, kEach);
  EXPECT_GE(counts.private_steps, kEach);
  EXPECT_GE(counts.groups, kEach);
  EXPECT_GE(counts.dropped_optimizers, kEach);
  EXPECT_GE(counts.random_creations, kEach);

  EXPECT_EQ(ReplayInAFreshProcess(journal.bytes()), contents);
}

// ---- one journal with a change of every kind

class SmallJournal : public ::testing::Test {
 protected:
  SmallJournal() : owner_(&journal_, 99) {
    w_ = Create("w", Tensor::Of<float>({2, 2}, {1, 2, 3, 4}), false);
    table_ = Create("table", Tensor::Of<float>({3, 2}, {1, 2, 3, 4, 5, 6}), true);
    CreateOptimizer change;
    change.name = "main";
    change.groups = {{Spec(), {w_, table_}}};
    change.settings.schedule = optim::Schedule::Exponential(0.5);
    change.life = {{7, 7}, {{"owner0", 5}}};
    auto made = owner_.changes->Apply(change, [this](const auto& optimizer) { main_ = optimizer; });
    EXPECT_TRUE(made.Wait().ok()) << made.Wait().status();
    AssignValue assign{w_, Tensor::Of<float>({2, 2}, {4, 3, 2, 1})};
    EXPECT_TRUE(owner_.changes->Apply(assign).ok());
    Step({Dense(w_, 0.5), Sparse()});
    main_->SetOptions(0, {{"lr", 0.25}}, 0, {7, 7},
                      [](const auto& changed) { EXPECT_TRUE(changed.ok()) << changed.status(); });
    LoadValue load{table_, 1, Tensor::Of<float>({1, 2}, {8, 9}), {}};
    load.states.push_back({main_, &main_->table()[1], 3, {Tensor::Of<float>({1, 2}, {1, 1})}});
    EXPECT_TRUE(owner_.changes->Apply(load).ok());
    EXPECT_TRUE(main_->FinishLoad({{7, 8}, {{"owner0", 5}}}, {}, {5, 0, 0}).ok());
    Create("gone", Tensor::Of<float>({1}, {1}), false);
    EXPECT_TRUE(owner_.changes->Apply(DropName{"gone", *owner_.store->Lookup("gone")}).ok());
    Step({Dense(w_, 1)});
    records_ = Records(journal_.bytes());
  }
  optim::OptimizerSpec Spec() const {
    return (*owner_.registry.Create({"adagrad", {{"lr", 0.5}}}))->spec();
  }
  store::EntryPtr Create(const std::string& name, Tensor elements, bool rows) {
    return *owner_.changes->Apply(CreateValue{{}, name, nullptr, std::move(elements), rows, true})
                .Wait();
  }
  static optim::ParameterGradient Dense(const store::EntryPtr& entry, float each) {
    optim::ParameterGradient gradient;
    gradient.parameter = entry->id;
    gradient.gradient = *Tensor::Full(entry->parameter->shape(), DType::kF32, each);
    gradient.version = 1;
    return gradient;
  }
  optim::ParameterGradient Sparse() const {
    optim::ParameterGradient gradient;
    gradient.parameter = table_->id;
    gradient.sparse = {*SparseTensor::Create({3, 2}, Tensor::Of<int64_t>({1, 2}, {2, 0}),
                                             Tensor::Of<float>({2, 2}, {1, 2, 3, 4}))};
    return gradient;
  }
  void Step(std::vector<optim::ParameterGradient> gradients) {
    optim::StepRequest request;
    request.step_id = {50, ++steps_};
    request.member = {{50, 1}, "trainer0"};
    request.plan = *main_->table().Plan(std::move(gradients));
    request.done = [](const auto& result) { EXPECT_TRUE(result.ok()) << result.status(); };
    main_->Step(std::move(request));
  }
  static std::vector<std::string> Records(const std::string& journal) {
    std::vector<std::string> records;
    JournalReader reader = *JournalReader::Open(journal);
    while (true) {
      const auto next = *reader.Next();
      if (!next.has_value()) return records;
      records.emplace_back(*next);
    }
  }

  MemoryJournal journal_;
  LocalOwner owner_;
  std::shared_ptr<optim::OwnerOptimizer> main_;
  store::EntryPtr w_, table_;
  uint64_t steps_ = 0;
  std::vector<std::string> records_;
};

TEST_F(SmallJournal, IsTheSameAfterAReplay) {
  LocalOwner again(nullptr, 4711);
  const absl::Status replayed = ReplayAll(journal_.bytes(), again.ForReplay());
  ASSERT_TRUE(replayed.ok()) << replayed;
  EXPECT_EQ(TextOf(*again.store), TextOf(*owner_.store));
}

// The applied steps stay known, so that a trainer that repeats one is told so.
TEST_F(SmallJournal, AStepIsNotAppliedAgainAfterAReplay) {
  LocalOwner again(nullptr, 4711);
  ASSERT_TRUE(ReplayAll(journal_.bytes(), again.ForReplay()).ok());
  const auto optimizer = optim::OptimizerOf(**again.store->Lookup("main"));
  optim::StepRequest request;
  request.step_id = {50, steps_};
  request.member = {{50, 1}, "trainer0"};
  request.plan = *optimizer->table().Plan({Dense(*again.store->Lookup("w"), 1)});
  request.done = [](const absl::StatusOr<optim::StepResult>& result) {
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_TRUE(result->repeated);
  };
  optimizer->Step(std::move(request));
}

TEST_F(SmallJournal, IsRefusedWhereItIsCutOff) {
  const std::string journal = journal_.bytes();
  size_t whole = 0;
  for (size_t size = 0; size < journal.size(); ++size) {
    LocalOwner again(nullptr, 4711);
    const absl::Status replayed =
        ReplayAll(absl::string_view(journal).substr(0, size), again.ForReplay());
    if (replayed.ok()) {
      ++whole;  // it ends after a record
      continue;
    }
    EXPECT_EQ(replayed.code(), absl::StatusCode::kDataLoss) << size << ": " << replayed;
  }
  EXPECT_EQ(whole, records_.size());
}

TEST_F(SmallJournal, IsRefusedWhereABitIsFlipped) {
  const std::string journal = journal_.bytes();
  for (size_t i = 0; i < journal.size(); ++i) {
    std::string damaged = journal;
    damaged[i] = static_cast<char>(damaged[i] ^ (1 << i % 8));
    LocalOwner again(nullptr, 4711);
    const absl::Status replayed = ReplayAll(damaged, again.ForReplay());
    EXPECT_EQ(replayed.code(), absl::StatusCode::kDataLoss) << i << ": " << replayed;
  }
}

// If the checksum did not reveal it, a damaged record might be another change. Such a record is
// applied or refused, and does no harm.
TEST_F(SmallJournal, ADamagedRecordIsNoDanger) {
  int refused = 0;
  for (size_t damaged = 0; damaged < records_.size(); ++damaged) {
    for (size_t i = 0; i < records_[damaged].size(); ++i) {
      for (const int how : {0, 1, 2}) {
        LocalOwner again(nullptr, 4711);
        Replay replay(again.ForReplay());
        for (size_t k = 0; k < damaged; ++k) ASSERT_TRUE(replay.Apply(records_[k]).ok());
        std::string record = records_[damaged];
        if (how == 0) record[i] = static_cast<char>(record[i] ^ (1 << i % 8));
        if (how == 1) record[i] = static_cast<char>(0xff);
        if (how == 2) record.resize(i);
        const absl::Status applied = replay.Apply(record);
        refused += !applied.ok();
        EXPECT_EQ(applied.ok(), applied.message().empty());
      }
    }
  }
  EXPECT_GT(refused, 1000);
}

TEST_F(SmallJournal, OfAnotherFormatOrInstructionSetIsRefused) {
  const auto open = [](uint32_t format, const std::string& instructions) {
    v1::JournalStart start;
    start.set_format(format);
    start.set_instruction_set(instructions);
    std::string journal;
    AppendRecord(start.SerializeAsString(), &journal);
    return JournalReader::Open(journal).status();
  };
  EXPECT_THAT(open(2, "AVX2").ToString(),
              HasSubstr("FAILED_PRECONDITION: the journal has format 2"));
  EXPECT_THAT(open(1, "abacus").ToString(),
              HasSubstr("FAILED_PRECONDITION: the journal was written on "
                        "abacus"));
  EXPECT_EQ(JournalReader::Open("").status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(SmallJournal, ARecordThatDoesNotFitNamesItsObject) {
  LocalOwner again(nullptr, 4711);
  Replay replay(again.ForReplay());
  // The creation of the optimizer comes before those of its parameters.
  EXPECT_EQ(replay.Apply(records_[2]).code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(replay.Apply(records_[0]).ok());
  EXPECT_THAT(replay.Apply(records_[0]).ToString(), HasSubstr("which is here already"));
  EXPECT_FALSE(replay.Apply("").ok());
}

// A gradient for a parameter without a name is not part of the record. The others are rounded as if
// it were.
TEST(ReplayOfMixedOptimizers, RoundingDoesNotDependOnUnnamedParameters) {
  MemoryJournal journal;
  LocalOwner owner(&journal, 99);
  const auto tensor = [] { return *Tensor::Full({64}, DType::kBF16, 1); };
  const store::EntryPtr unnamed = *owner.store->Put(store::Value(tensor()), true);
  const store::EntryPtr w = *owner.changes->Apply({{}, "w", nullptr, tensor(), false, true}).Wait();
  std::shared_ptr<optim::OwnerOptimizer> optimizer;
  CreateOptimizer change;
  change.name = "main";
  change.groups = {
      {(*owner.registry.Create({"sgd", {{"lr", 0.001}, {"stochastic_rounding", 1}}}))->spec(),
       {unnamed, w}}};
  ASSERT_TRUE(
      owner.changes->Apply(change, [&](const auto& made) { optimizer = made; }).Wait().ok());
  ASSERT_TRUE(unnamed->id < w->id);
  for (uint64_t i = 1; i <= 5; ++i) {
    optim::StepRequest request;
    request.step_id = {50, i};
    std::vector<optim::ParameterGradient> gradients(2);
    gradients[0].parameter = unnamed->id;
    gradients[1].parameter = w->id;
    for (auto& each : gradients) each.gradient = tensor();
    request.plan = *optimizer->table().Plan(std::move(gradients));
    request.done = [](const auto& result) { EXPECT_TRUE(result.ok()) << result.status(); };
    optimizer->Step(std::move(request));
  }
  LocalOwner again(nullptr, 4711);
  const absl::Status replayed = ReplayAll(journal.bytes(), again.ForReplay());
  ASSERT_TRUE(replayed.ok()) << replayed;
  EXPECT_EQ(TextOfElements(**again.store->Lookup("w")), TextOfElements(*w));
  EXPECT_EQ(optim::OptimizerOf(**again.store->Lookup("main"))->table().size(), 1u);
}

}  // namespace
}  // namespace psd::change

int main(int argc, char** argv) {
  if (argc == 3 && std::string(argv[1]) == "--replay") return psd::change::ReplayFile(argv[2]);
  ::testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
