#include "core/program/program_cache.h"

#include <memory>
#include <thread>
#include <vector>

#include "core/autograd/operators.h"
#include "core/base/buffer.h"
#include "core/base/memory_budget.h"
#include "gtest/gtest.h"

namespace psd::program {
namespace {

// Makes a program with instructions that take equal memory.
Program Numbered(int n, size_t instructions = 1) {
  Program program;
  program.num_inputs = n + 1;
  program.instructions.assign(instructions, {"neg", {0}, {}});
  return program;
}

CheckedProgram Checked(const Program& program) {
  static const auto* operators =
      new std::shared_ptr<const OperatorRegistry>(OperatorRegistry::Builtin());
  return *CheckedProgram::Create(program, **operators, {});
}

TEST(ProgramCache, FindsWhatWasInsertedAndSharesEqualOnes) {
  ProgramCache cache(2);
  EXPECT_EQ(cache.Find(FingerprintOf(Numbered(1))), nullptr);
  auto first = *cache.Insert(Checked(Numbered(1)));
  EXPECT_EQ(cache.Find(FingerprintOf(Numbered(1))), first);
  EXPECT_EQ(*cache.Insert(Checked(Numbered(1))), first);
  EXPECT_EQ(cache.size(), 1u);
}

TEST(ProgramCache, ForgetsTheLeastRecentlyUsed) {
  ProgramCache cache(2);
  ASSERT_TRUE(cache.Insert(Checked(Numbered(1))).ok());
  ASSERT_TRUE(cache.Insert(Checked(Numbered(2))).ok());
  cache.Find(FingerprintOf(Numbered(1)));
  ASSERT_TRUE(cache.Insert(Checked(Numbered(3))).ok());
  EXPECT_NE(cache.Find(FingerprintOf(Numbered(1))), nullptr);
  EXPECT_EQ(cache.Find(FingerprintOf(Numbered(2))), nullptr);
  EXPECT_NE(cache.Find(FingerprintOf(Numbered(3))), nullptr);
}

TEST(ProgramCache, IsBoundedInBytes) {
  ProgramCache cache(100, nullptr, 5 * MemoryBytes(Numbered(1, 10)) / 2);
  ASSERT_TRUE(cache.Insert(Checked(Numbered(1, 50))).ok());
  EXPECT_EQ(cache.size(), 0u);
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(cache.Insert(Checked(Numbered(i, 10))).ok());
  EXPECT_EQ(cache.size(), 2u);
}

TEST(ProgramCache, ChargesWhatItDoesNotKeep) {
  const size_t bytes = MemoryBytes(Numbered(1, 100));
  const auto account = MemoryAccount::Create(3 * bytes, NewHeapAllocator());
  ProgramCache cache(100, account);
  auto first = *cache.Insert(Checked(Numbered(1, 100)));
  EXPECT_EQ(cache.size(), 0u) << "larger than a 64th of the account";
  EXPECT_EQ(account->used_bytes(), bytes);
  auto second = *cache.Insert(Checked(Numbered(2, 100)));
  auto third = *cache.Insert(Checked(Numbered(3, 100)));
  const auto refused = cache.Insert(Checked(Numbered(4, 100)));
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted) << refused.status();
  second.reset();
  EXPECT_TRUE(cache.Insert(Checked(Numbered(4, 100))).ok());
  first.reset();
  third.reset();
  EXPECT_EQ(account->used_bytes(), 0u);
}

TEST(ProgramCache, ChargesAForgottenProgramAsLongAsACallHasIt) {
  const auto account = MemoryAccount::Create(1 << 20, NewHeapAllocator());
  ProgramCache cache(2, account);
  auto held = *cache.Insert(Checked(Numbered(1)));
  ASSERT_TRUE(cache.Insert(Checked(Numbered(2))).ok());
  EXPECT_EQ(account->used_bytes(), 0u) << "both are kept";
  ASSERT_TRUE(cache.Insert(Checked(Numbered(3))).ok());
  ASSERT_TRUE(cache.Insert(Checked(Numbered(4))).ok());
  EXPECT_EQ(account->used_bytes(), MemoryBytes(Numbered(1)));
  held.reset();
  EXPECT_EQ(account->used_bytes(), 0u);
}

// A program of few bytes on the wire may be large.
TEST(ProgramCache, CountsTheMemoryOfAttributes) {
  Program program;
  program.num_inputs = 1;
  program.instructions = {{"neg", {0}, {{"dims", std::vector<int64_t>(1000, 1)}}}};
  EXPECT_GE(MemoryBytes(program), 8000u);
}

TEST(ProgramCache, ManyThreads) {
  ProgramCache cache(4);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&cache] {
      for (int i = 0; i < 500; ++i) {
        auto program = *cache.Insert(Checked(Numbered(i % 8)));
        EXPECT_EQ(program->program().num_inputs, i % 8 + 1);
        auto found = cache.Find(FingerprintOf(Numbered((i + 1) % 8)));
        if (found != nullptr) {
          EXPECT_EQ(found->program().num_inputs, (i + 1) % 8 + 1);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(cache.size(), 4u);
}

}  // namespace
}  // namespace psd::program
