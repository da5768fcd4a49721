#pragma once

// Memory for small objects that are made and freed by the thousand. Each thread keeps what it
// freed, by size and up to a bound; behind that pieces of up to kMaxSlabPieceBytes come from one
// SlabHeap, larger ones from operator new. Thread-safe; a piece may be given back by another thread
// than the one that took it. Under a sanitizer all are operator new's and nothing is kept, so that
// errors show.

#include <cstddef>

namespace psd {

// Larger pieces go straight to it.
inline constexpr size_t kMaxKeptPieceBytes = size_t{72} << 10;
// What one thread keeps, at most. It goes back when the thread ends.
inline constexpr size_t kMaxKeptBytesPerThread = size_t{8} << 20;

// At least `bytes` bytes that start at a multiple of 64, with undefined contents; fails as operator
// new does.
void* TakeSmallMemory(size_t bytes);
// Requires: `address` came from TakeSmallMemory(bytes).
void GiveSmallMemory(void* address, size_t bytes);

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
