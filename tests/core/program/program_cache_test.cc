#include "core/program/program_cache.h"

#include <memory>
#include <thread>
#include <vector>

#include "core/autograd/operators.h"
#include "gtest/gtest.h"

namespace psd::program {
namespace {

// Makes a program that takes about forty bytes for each instruction.
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
  auto first = cache.Insert(Checked(Numbered(1)));
  EXPECT_EQ(cache.Find(FingerprintOf(Numbered(1))), first);
  EXPECT_EQ(cache.Insert(Checked(Numbered(1))), first);
  EXPECT_EQ(cache.size(), 1u);
}

TEST(ProgramCache, ForgetsTheLeastRecentlyUsed) {
  ProgramCache cache(2);
  cache.Insert(Checked(Numbered(1)));
  cache.Insert(Checked(Numbered(2)));
  cache.Find(FingerprintOf(Numbered(1)));
  cache.Insert(Checked(Numbered(3)));
  EXPECT_NE(cache.Find(FingerprintOf(Numbered(1))), nullptr);
  EXPECT_EQ(cache.Find(FingerprintOf(Numbered(2))), nullptr);
  EXPECT_NE(cache.Find(FingerprintOf(Numbered(3))), nullptr);
}

TEST(ProgramCache, IsBoundedInBytes) {
  ProgramCache cache(100, 1000);
  auto large = cache.Insert(Checked(Numbered(1, 50)));
  ASSERT_NE(large, nullptr);
  EXPECT_EQ(cache.size(), 0u);
  for (int i = 0; i < 10; ++i) cache.Insert(Checked(Numbered(i, 10)));
  EXPECT_EQ(cache.size(), 2u);
}

TEST(ProgramCache, ManyThreads) {
  ProgramCache cache(4);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&cache] {
      for (int i = 0; i < 500; ++i) {
        auto program = cache.Insert(Checked(Numbered(i % 8)));
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
