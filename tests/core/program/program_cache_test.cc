#include "core/program/program_cache.h"

#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace psd::program {
namespace {

Program Numbered(int n, size_t name_bytes = 3) {
  Program program;
  program.num_inputs = n;
  program.instructions.push_back({std::string(name_bytes, 'x'), {}, {}});
  return program;
}

TEST(ProgramCache, FindsWhatWasInsertedAndSharesEqualOnes) {
  ProgramCache cache(2);
  EXPECT_EQ(cache.Find(FingerprintOf(Numbered(1))), nullptr);
  auto first = cache.Insert(Numbered(1));
  EXPECT_EQ(cache.Find(FingerprintOf(Numbered(1))), first);
  EXPECT_EQ(cache.Insert(Numbered(1)), first);
  EXPECT_EQ(cache.size(), 1u);
}

TEST(ProgramCache, ForgetsTheLeastRecentlyUsed) {
  ProgramCache cache(2);
  cache.Insert(Numbered(1));
  cache.Insert(Numbered(2));
  cache.Find(FingerprintOf(Numbered(1)));
  cache.Insert(Numbered(3));
  EXPECT_NE(cache.Find(FingerprintOf(Numbered(1))), nullptr);
  EXPECT_EQ(cache.Find(FingerprintOf(Numbered(2))), nullptr);
  EXPECT_NE(cache.Find(FingerprintOf(Numbered(3))), nullptr);
}

TEST(ProgramCache, IsBoundedInBytes) {
  ProgramCache cache(100, 1000);
  auto large = cache.Insert(Numbered(1, 2000));
  ASSERT_NE(large, nullptr);
  EXPECT_EQ(cache.size(), 0u);
  for (int i = 0; i < 10; ++i) cache.Insert(Numbered(i, 300));
  EXPECT_EQ(cache.size(), 2u);
}

TEST(ProgramCache, ManyThreads) {
  ProgramCache cache(4);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&cache] {
      for (int i = 0; i < 500; ++i) {
        auto program = cache.Insert(Numbered(i % 8));
        EXPECT_EQ(program->num_inputs, i % 8);
        auto found = cache.Find(FingerprintOf(Numbered((i + 1) % 8)));
        if (found != nullptr) EXPECT_EQ(found->num_inputs, (i + 1) % 8);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(cache.size(), 4u);
}

}  // namespace
}  // namespace psd::program
