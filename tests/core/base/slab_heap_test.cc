#include "core/base/slab_heap.h"

#include <cstdint>
#include <cstring>
#include <set>
#include <thread>
#include <vector>

#include "absl/types/span.h"
#include "gtest/gtest.h"

namespace psd {
namespace {

constexpr size_t kChunk = size_t{2} << 20;

std::vector<void*> Take(SlabHeap& heap, size_t bytes, size_t count) {
  std::vector<void*> pieces(count);
  EXPECT_EQ(heap.Take(bytes, absl::MakeSpan(pieces)), count);
  return pieces;
}

TEST(SlabHeapTest, PiecesOfEverySizeAreAlignedAndTheirOwn) {
  SlabHeap heap;
  std::vector<void*> all;
  std::vector<size_t> sizes;
  for (int round = 0; round < 12; ++round) {
    for (size_t bytes = kSlabUnitBytes; bytes <= kMaxSlabPieceBytes; bytes += kSlabUnitBytes) {
      all.push_back(Take(heap, bytes, 1)[0]);
      sizes.push_back(bytes);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(all.back()) % kSlabUnitBytes, 0u);
      std::memset(all.back(), static_cast<int>(all.size()), bytes);
    }
  }
  for (size_t i = 0; i < all.size(); ++i) {
    const auto* piece = static_cast<const unsigned char*>(all[i]);
    for (size_t at = 0; at < sizes[i]; ++at)
      ASSERT_EQ(piece[at], static_cast<unsigned char>(i + 1)) << i;
  }
  heap.Give(all);
}

TEST(SlabHeapTest, FreshPiecesFollowOneAnother) {
  SlabHeap heap;
  const std::vector<void*> pieces = Take(heap, 512, 100);
  for (size_t i = 1; i < pieces.size(); ++i)
    EXPECT_EQ(static_cast<std::byte*>(pieces[i]) - static_cast<std::byte*>(pieces[i - 1]), 512);
  heap.Give(pieces);
}

TEST(SlabHeapTest, PiecesThatWereGivenBackAreTakenAgain) {
  SlabHeap heap;
  std::vector<void*> pieces = Take(heap, 1024, 5000);
  const size_t mapped = heap.mapped_bytes();
  for (int round = 0; round < 3; ++round) {
    heap.Give(pieces);
    pieces = Take(heap, 1024, 5000);
    EXPECT_EQ(std::set<void*>(pieces.begin(), pieces.end()).size(), pieces.size());
  }
  EXPECT_EQ(heap.mapped_bytes(), mapped);
  heap.Give(pieces);
}

TEST(SlabHeapTest, AnEmptySpanServesAnotherSize) {
  SlabHeap heap;
  heap.Give(Take(heap, 64, 20'000));
  const size_t mapped = heap.mapped_bytes();
  heap.Give(Take(heap, 8192, 20'000 * 64 / 8192 / 2));
  EXPECT_EQ(heap.mapped_bytes(), mapped);
}

TEST(SlabHeapTest, EmptyChunksBeyondABoundGoBackToTheSystem) {
  SlabHeap heap;
  const std::vector<void*> pieces = Take(heap, 8192, 64'000'000 / 8192 * 2);
  EXPECT_GT(heap.mapped_bytes(), (kMaxEmptyChunks + 10) * kChunk);
  heap.Give(pieces);
  EXPECT_EQ(heap.mapped_bytes(), kMaxEmptyChunks * kChunk);
}

TEST(SlabHeapTest, AChunkStaysWhileOnePieceOfItIsTaken) {
  SlabHeap heap;
  std::vector<void*> pieces = Take(heap, 8192, 64'000'000 / 8192 * 2);
  void* last = pieces.back();
  pieces.pop_back();
  std::memset(last, 7, 8192);
  heap.Give(pieces);
  EXPECT_EQ(heap.mapped_bytes(), (kMaxEmptyChunks + 1) * kChunk);
  EXPECT_EQ(static_cast<unsigned char*>(last)[8191], 7);
  heap.Give({&last, 1});
  EXPECT_EQ(heap.mapped_bytes(), kMaxEmptyChunks * kChunk);
}

// Each thread writes all of its own pieces and gives back those of its neighbour.
TEST(SlabHeapTest, ThreadsTakeAndGiveAtOnce) {
  constexpr size_t kThreads = 4;
  SlabHeap heap;
  for (int round = 0; round < 20; ++round) {
    std::vector<std::vector<void*>> taken(kThreads);
    const auto each = [&](auto run) {
      std::vector<std::thread> threads;
      for (size_t t = 0; t < kThreads; ++t) threads.emplace_back([&run, t] { run(t); });
      for (std::thread& thread : threads) thread.join();
    };
    each([&](size_t t) {
      for (size_t i = 0; i < 200; ++i) {
        const size_t bytes = (1 + (i + t) % 8) * 256;
        for (void* piece : Take(heap, bytes, 3)) {
          std::memset(piece, static_cast<int>(t), bytes);
          taken[t].push_back(piece);
        }
      }
      heap.Give(absl::MakeSpan(taken[t]).subspan(0, 300));
      taken[t].erase(taken[t].begin(), taken[t].begin() + 300);
    });
    each([&](size_t t) {
      const std::vector<void*>& pieces = taken[(t + 1) % kThreads];
      for (void* piece : pieces) EXPECT_EQ(*static_cast<unsigned char*>(piece), (t + 1) % kThreads);
      heap.Give(pieces);
    });
  }
}

TEST(SlabHeapTest, KeepsFewerEmptyChunksWhereTheyAreLimited) {
  SlabHeap heap;
  heap.LimitEmpty(2 * kChunk);
  std::vector<void*> pieces = Take(heap, kMaxSlabPieceBytes, 6 * kChunk / kMaxSlabPieceBytes);
  EXPECT_GE(heap.mapped_bytes(), 6 * kChunk);
  heap.Give(pieces);
  EXPECT_EQ(heap.mapped_bytes(), 2 * kChunk);
}

}  // namespace
}  // namespace psd
