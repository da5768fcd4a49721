#include "core/base/aligned_memory.h"

#include <malloc.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include "gtest/gtest.h"

namespace psd {
namespace {

TEST(AlignedMemory, IsAtMultiplesOfSixtyFourAndHoldsItsBytes) {
  for (size_t bytes : {0, 1, 15, 64, 65, 1000, 60'000, 1'000'000}) {
    void* const address = AllocateAligned(bytes);
    ASSERT_NE(address, nullptr);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(address) % kMallocAlignment, 0u);
    std::memset(address, 1, bytes);
    FreeAligned(address);
  }
  FreeAligned(nullptr);
}

#ifndef __SANITIZE_ADDRESS__
#ifndef __SANITIZE_THREAD__
// Sanitizers end the process where malloc would return null, and their heaps have other rules.
TEST(AlignedMemory, IsNullWhereTheSystemHasNone) {
  EXPECT_EQ(AllocateAligned(SIZE_MAX), nullptr);
  EXPECT_EQ(AllocateAligned(SIZE_MAX - kMallocAlignment), nullptr);
}

TEST(AlignedMemory, TakesTheRoomOfAPieceOfTheSameSizeThatWasFreed) {
  constexpr size_t kPieces = 200, kBytes = 60'000;
  std::vector<void*> pieces;
  for (size_t i = 0; i < kPieces; ++i) pieces.push_back(AllocateAligned(kBytes));
  const size_t heap_bytes = mallinfo2().arena;
  for (size_t i = 0; i < kPieces; i += 2) FreeAligned(pieces[i]);
  for (size_t i = 0; i < kPieces; i += 2) pieces[i] = AllocateAligned(kBytes);
  EXPECT_LE(mallinfo2().arena, heap_bytes + 4 * kBytes);
  for (void* piece : pieces) FreeAligned(piece);
}
#endif
#endif

}  // namespace
}  // namespace psd
