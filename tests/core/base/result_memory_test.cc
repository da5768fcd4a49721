#include "core/base/result_memory.h"

#include <memory>
#include <optional>
#include <utility>

#include "gtest/gtest.h"

namespace psd {
namespace {

TEST(ResultMemoryTest, IsTheNewestScopesInWhateverOrderTheyEnd) {
  const std::shared_ptr<Allocator> ordinary = ResultMemory();
  ASSERT_NE(ordinary, nullptr);
  const std::shared_ptr<Allocator> a = NewHeapAllocator(), b = NewHeapAllocator();
  std::optional<ResultMemoryScope> first(a), second(b), third(a);
  EXPECT_EQ(ResultMemory(), a);
  first.reset();
  EXPECT_EQ(ResultMemory(), a);
  third.reset();
  EXPECT_EQ(ResultMemory(), b);
  second.reset();
  EXPECT_EQ(ResultMemory(), ordinary);
}

TEST(ResultMemoryTest, AnAllocatorIsNotKeptAfterItsScope) {
  std::shared_ptr<Allocator> mine = NewHeapAllocator();
  const std::weak_ptr<Allocator> watched = mine;
  {
    const ResultMemoryScope scope(std::move(mine));
    EXPECT_FALSE(watched.expired());
  }
  EXPECT_TRUE(watched.expired());
}

TEST(ResultMemoryTest, WithoutAScopeFreedMemoryIsUsedAgain) {
  constexpr size_t kBytes = size_t{3} << 20;
  auto block = *ResultMemory()->Allocate(kBytes);
  const std::byte* const data = block->data();
  block.reset();
  EXPECT_EQ((*ResultMemory()->Allocate(kBytes))->data(), data);
}

}  // namespace
}  // namespace psd
