#pragma once

// Memory for small objects that are made and freed by the thousand. Each thread keeps what it
// freed, by size and up to a bound; behind that pieces of up to kMaxSlabPieceBytes come from one
// SlabHeap, larger ones from operator new. Thread-safe; a piece may be given back by another thread
// than the one that took it. Under a sanitizer all are operator new's and nothing is kept, so that
// errors show.

#include <cstddef>
#include <new>

#include "absl/base/optimization.h"

namespace psd {

// Larger pieces go straight to it.
inline constexpr size_t kMaxKeptPieceBytes = size_t{72} << 10;
// What one thread keeps, at most. It goes back when the thread ends.
inline constexpr size_t kMaxKeptBytesPerThread = size_t{8} << 20;

namespace internal {

inline constexpr size_t kSmallMemoryUnit = 64;
// Up to so many units, a piece's size class is the number of its units.
inline constexpr size_t kUnitClasses = 15;

struct FreePiece {
  FreePiece* next;
};
// What a thread keeps. Plain data, so that it may still be used while other objects of an ending
// thread go.
struct FreeLists {
  FreePiece* first[88];  // by size class
  size_t bytes;          // in the lists
  size_t max_bytes;      // 0: nothing was kept yet, or the thread ends
  bool closed;
};
inline thread_local FreeLists free_lists = {};

// For all that the lists of this thread do not do at once.
void* TakeElsewhere(size_t bytes);
void GiveElsewhere(void* address, size_t bytes);

}  // namespace internal

// At least `bytes` bytes that start at a multiple of 64, with undefined contents; fails as operator
// new does.
inline void* TakeSmallMemory(size_t bytes) {
  const size_t units = (bytes + internal::kSmallMemoryUnit - 1) / internal::kSmallMemoryUnit;
  if (ABSL_PREDICT_FALSE(units > internal::kUnitClasses)) return internal::TakeElsewhere(bytes);
  internal::FreeLists& lists = internal::free_lists;
  internal::FreePiece* piece = lists.first[units];
  if (ABSL_PREDICT_FALSE(piece == nullptr)) return internal::TakeElsewhere(bytes);
  lists.first[units] = piece->next;
  lists.bytes -= units * internal::kSmallMemoryUnit;
  return piece;
}
// Requires: `address` came from TakeSmallMemory(bytes).
inline void GiveSmallMemory(void* address, size_t bytes) {
  const size_t units = (bytes + internal::kSmallMemoryUnit - 1) / internal::kSmallMemoryUnit;
  internal::FreeLists& lists = internal::free_lists;
  const size_t kept = lists.bytes + units * internal::kSmallMemoryUnit;
  const bool fits = units - 1 < internal::kUnitClasses && kept <= lists.max_bytes;
  if (ABSL_PREDICT_FALSE(!fits)) return internal::GiveElsewhere(address, bytes);
  lists.first[units] = new (address) internal::FreePiece{lists.first[units]};
  lists.bytes = kept;
}

// For std::allocate_shared: the object and its counts, with `extra` bytes behind them from the next
// multiple of 64 on.
template <typename T>
class SmallMemoryAllocator {
 public:
  using value_type = T;
  explicit SmallMemoryAllocator(size_t extra = 0) : extra_(extra) {}
  template <typename U>
  SmallMemoryAllocator(const SmallMemoryAllocator<U>& other)  // NOLINT: allocators convert
      : extra_(other.extra()) {}

  T* allocate(size_t count) { return static_cast<T*>(TakeSmallMemory(BytesOf(count))); }
  void deallocate(T* address, size_t count) { GiveSmallMemory(address, BytesOf(count)); }
  size_t extra() const { return extra_; }

  template <typename U>
  friend bool operator==(const SmallMemoryAllocator& a, const SmallMemoryAllocator<U>& b) {
    return a.extra() == b.extra();
  }
  template <typename U>
  friend bool operator!=(const SmallMemoryAllocator& a, const SmallMemoryAllocator<U>& b) {
    return !(a == b);
  }

 private:
  size_t BytesOf(size_t count) const { return (count * sizeof(T) + 63) / 64 * 64 + extra_; }

  size_t extra_;
};

}  // namespace psd
