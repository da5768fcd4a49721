// The function that applies changes, over a store without a worker.

#include "core/change/changes.h"

#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/autograd/operators.h"
#include "core/base/buffer.h"
#include "core/base/ids.h"
#include "core/base/memory_budget.h"
#include "core/change/change.h"
#include "core/change/journal.h"
#include "core/optim/options/optimizer_registry.h"
#include "core/program/checked_program.h"
#include "core/program/program.h"
#include "core/store/store.h"
#include "core/store/write_claims.h"
#include "core/tensor/tensor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace psd::change {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Writes down one word for each change.
class Words : public Journal {
 public:
  void Append(const Change& change) override {
    static const char* const kWords[] = {"create", "optimizer", "drop",    "assign",
                                         "load",   "step",      "options", "life"};
    words.emplace_back(kWords[change.index()]);
  }
  std::vector<std::string> words;
};

class ChangesTest : public ::testing::Test {
 protected:
  ChangesTest() {
    store::StoreOptions options;
    options.memory = MemoryAccount::Create(0, NewHeapAllocator());
    options.max_values = 3;
    store_ = store::Store::Create(std::move(options), ids_);
    changes_ = std::make_unique<Changes>(
        Changes::Uses{*store_, registry_, limits_, *budget_, {}, nullptr, &journal_});
  }
  absl::StatusOr<store::EntryPtr> Create(const std::string& name, Tensor elements) {
    return changes_->Apply(CreateValue{{}, name, nullptr, std::move(elements), false, true}).Wait();
  }
  static Tensor Full(double value) { return *Tensor::Full({4}, DType::kF32, value); }

  Words journal_;
  IdSource ids_{99};
  const optim::OptimizerRegistry registry_ = optim::OptimizerRegistry::Builtin();
  const program::ProgramLimits limits_;
  const std::shared_ptr<MemoryBudget> budget_ = MemoryBudget::Create(0);
  std::unique_ptr<store::Store> store_;
  std::unique_ptr<Changes> changes_;
};

TEST_F(ChangesTest, AnAssignmentWaitsForTheStepsBeforeIt) {
  const store::EntryPtr entry = *Create("w", Full(1));
  const auto step = store_->write_claims().Claim({entry->id}, [](store::WriteClaims::ClaimId) {});
  std::vector<uint64_t> versions;
  changes_->Assign(entry, Full(2), [&](absl::StatusOr<uint64_t> v) { versions.push_back(*v); });
  EXPECT_TRUE(versions.empty());
  EXPECT_EQ(entry->parameter->version(), 1u);
  EXPECT_THAT(journal_.words, ElementsAre("create"));
  store_->write_claims().Release(step);
  EXPECT_THAT(versions, ElementsAre(2u));
  EXPECT_THAT(journal_.words, ElementsAre("create", "assign"));
}

TEST_F(ChangesTest, ARefusedAssignmentNamesTheValueAndIsNoChange) {
  const store::EntryPtr entry = *Create("w", Full(1));
  absl::Status failed;
  const auto note = [&](const absl::StatusOr<uint64_t>& v) { failed = v.status(); };
  changes_->Assign(entry, *Tensor::Zeros({5}, DType::kF32), note);
  EXPECT_THAT(failed.message(), HasSubstr("'w'"));
  changes_->Assign(*store_->Put(store::Value("text"), false), Full(1), note);
  EXPECT_THAT(failed.message(), HasSubstr("is a string"));
  EXPECT_EQ(entry->parameter->version(), 1u);
  EXPECT_THAT(journal_.words, ElementsAre("create"));
}

TEST_F(ChangesTest, AnonymousValuesAreNotDescribed) {
  const store::EntryPtr entry = *store_->Put(store::Value(Full(1)), true);
  changes_->Assign(entry, Full(2), [](const absl::StatusOr<uint64_t>& v) { EXPECT_TRUE(v.ok()); });
  EXPECT_THAT(journal_.words, ElementsAre());
}

// A thread that finds a value has already seen its creation in the journal.
TEST_F(ChangesTest, ACreationIsSeenBeforeItsValueAndOnlyOnce) {
  class Looks : public Journal {
   public:
    explicit Looks(const std::unique_ptr<store::Store>& store) : store_(store) {}
    void Append(const Change& change) override {
      const auto* created = std::get_if<const CreateValue*>(&change);
      ASSERT_NE(created, nullptr);
      EXPECT_FALSE(store_->Lookup((*created)->name).ok());
      id = (*created)->id;
      ++seen;
    }
    GlobalId id;
    int seen = 0;

   private:
    const std::unique_ptr<store::Store>& store_;
  } looks(store_);
  Changes changes({*store_, registry_, limits_, *budget_, {}, nullptr, &looks});
  const CreateValue w{{}, "w", nullptr, Full(1)};
  const store::EntryPtr entry = *changes.Apply(w).Wait();
  EXPECT_EQ(*changes.Apply(w).Wait(), entry);
  EXPECT_EQ(looks.id, entry->id);
  EXPECT_EQ(looks.seen, 1);
}

// A value that is being made already has its memory, so a creation that was seen cannot fail.
TEST_F(ChangesTest, ACreationThatWasSeenHasRoom) {
  class Fills : public Journal {
   public:
    explicit Fills(const std::unique_ptr<store::Store>& store) : store_(store) {}
    void Append(const Change& /*change*/) override {
      while (store_->Put(store::Value("more"), false).ok()) {
      }
    }

   private:
    const std::unique_ptr<store::Store>& store_;
  } fills(store_);
  Changes changes({*store_, registry_, limits_, *budget_, {}, nullptr, &fills});
  EXPECT_TRUE(changes.Apply(CreateValue{{}, "w", nullptr, Full(1)}).Wait().ok());
}

TEST_F(ChangesTest, AGivenIdIsKept) {
  const store::EntryPtr entry = *changes_->Apply(CreateValue{{7, 8}, "w", nullptr, Full(1)}).Wait();
  EXPECT_EQ(entry->id, (GlobalId{7, 8}));
  EXPECT_EQ(*store_->Get({7, 8}), entry);
}

TEST_F(ChangesTest, AProgramMakesTheValue) {
  program::Program program;
  program::Instruction ones;
  ones.op = "full";
  ones.attributes = {{"shape", std::vector<int64_t>{2, 3}}, {"value", 1.0}};
  program.instructions = {ones, ones};
  program.outputs = {0};
  const auto operators = OperatorRegistry::Builtin();
  const auto make = [&](std::vector<int> outputs, bool rows) {
    program.outputs.assign(outputs.begin(), outputs.end());
    auto checked = program::CheckedProgram::Create(program, *operators, limits_);
    EXPECT_TRUE(checked.ok()) << checked.status();
    return changes_
        ->Apply({{},
                 rows ? "rows" : "w",
                 std::make_shared<const program::CheckedProgram>(*std::move(checked)),
                 {},
                 rows,
                 true})
        .Wait();
  };
  EXPECT_THAT(make({0, 1}, false).status().message(), HasSubstr("one result"));
  EXPECT_EQ((*make({0}, false))->KindName(), "parameter f32[2, 3]");
  EXPECT_EQ((*make({0}, true))->KindName(), "rows f32[2, 3]");
  EXPECT_THAT(journal_.words, ElementsAre("create", "create"));
}

}  // namespace
}  // namespace psd::change
