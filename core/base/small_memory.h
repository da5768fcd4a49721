#pragma once

// Memory for small objects that are allocated and freed by the thousand. Each thread keeps free
// pieces in lists by size, up to a bound. The lists are filled from one SlabHeap for pieces of up
// to kMaxSlabPieceBytes, and from operator new for larger ones. Thread-safe; any thread may give a
// piece back. In a build with a sanitizer every piece comes from operator new and none is kept, so
// that the sanitizer sees each use after free.

#include <cstddef>
#include <new>

#include "absl/base/optimization.h"

namespace psd {

// Larger pieces are never kept; they come from operator new and go back to operator delete.
inline constexpr size_t kMaxKeptPieceBytes = size_t{72} << 10;
// The bound on the bytes that one thread keeps. They are given back when the thread ends.
inline constexpr size_t kMaxKeptBytesPerThread = size_t{8} << 20;

namespace internal {

inline constexpr size_t kSmallMemoryUnit = 64;
// For pieces of up to this many units the size class is the number of units.
inline constexpr size_t kUnitClasses = 15;

struct FreePiece {
  FreePiece* next;
};
// The free pieces that a thread keeps. It is plain data without a destructor, so it can still be
// used while other thread_local objects of an ending thread are destroyed.
struct FreeLists {
  FreePiece* first[88];  // by size class
  size_t bytes;          // in the lists
  size_t max_bytes;      // the bound; 0 before the first piece is kept and once the thread ends
  bool closed;           // the thread ends
};
inline thread_local FreeLists free_lists = {};

// The slow paths: for large pieces, empty lists and lists that have reached their bound.
void* TakeElsewhere(size_t bytes);
void GiveElsewhere(void* address, size_t bytes);

}  // namespace internal

// Returns at least `bytes` bytes at an address that is a multiple of 64, with undefined contents.
// Throws std::bad_alloc if there is no memory, as operator new does.
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
// Gives memory back. Requires: `address` came from TakeSmallMemory with the same `bytes`.
inline void GiveSmallMemory(void* address, size_t bytes) {
  const size_t units = (bytes + internal::kSmallMemoryUnit - 1) / internal::kSmallMemoryUnit;
  internal::FreeLists& lists = internal::free_lists;
  const size_t kept = lists.bytes + units * internal::kSmallMemoryUnit;
  const bool fits = units - 1 < internal::kUnitClasses && kept <= lists.max_bytes;
  if (ABSL_PREDICT_FALSE(!fits)) return internal::GiveElsewhere(address, bytes);
  lists.first[units] = new (address) internal::FreePiece{lists.first[units]};
  lists.bytes = kept;
}

// A standard allocator on small memory, for std::allocate_shared. Every allocation has `extra`
// bytes behind the objects (the shared object and its reference counts), from the next multiple of
// 64 on.
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
