#include "core/base/small_memory.h"

#include <cstdint>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace psd {
namespace {

TEST(SmallMemoryTest, EverySizeIsAlignedAndWritableAndItsOwn) {
  for (int round = 0; round < 2; ++round) {
    std::vector<std::pair<unsigned char*, size_t>> pieces;
    for (size_t bytes = 0; bytes < kMaxKeptPieceBytes + 3000; bytes += 997) {
      auto* piece = static_cast<unsigned char*>(TakeSmallMemory(bytes));
      EXPECT_EQ(reinterpret_cast<uintptr_t>(piece) % 64, 0u);
      std::memset(piece, static_cast<int>(pieces.size()), bytes);
      pieces.emplace_back(piece, bytes);
    }
    for (size_t i = 0; i < pieces.size(); ++i) {
      auto [piece, bytes] = pieces[i];
      for (size_t at = 0; at < bytes; ++at) ASSERT_EQ(piece[at], static_cast<unsigned char>(i));
      GiveSmallMemory(piece, bytes);
    }
  }
}

TEST(SmallMemoryTest, OtherThreadsMayGiveBackAndEnd) {
  std::vector<void*> pieces;
  for (int i = 0; i < 5000; ++i) pieces.push_back(TakeSmallMemory(2000));  // more than are kept
  std::thread other([&pieces] {
    for (void* piece : pieces) GiveSmallMemory(piece, 2000);
    GiveSmallMemory(TakeSmallMemory(100), 100);
  });
  other.join();
}

// Uses small memory in its destructor. It is constructed before the thread's lists are first used,
// so it is destroyed after them.
struct LastWill {
  ~LastWill() { GiveSmallMemory(TakeSmallMemory(500), 500); }
};

TEST(SmallMemoryTest, MayBeUsedWhileAThreadEnds) {
  std::thread([] {
    thread_local LastWill will;
    static_cast<void>(will);
    GiveSmallMemory(TakeSmallMemory(500), 500);
  }).join();
}

TEST(SmallMemoryTest, AllocatesSharedObjectsWithBytesBehindThem) {
  auto shared = std::allocate_shared<int64_t>(SmallMemoryAllocator<int64_t>(128), 5);
  std::memset(shared.get() + 1, 1, 128 - 16);
  EXPECT_EQ(*shared, 5);
}

}  // namespace
}  // namespace psd
