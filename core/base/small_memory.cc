#include "core/base/small_memory.h"

#include <new>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define PSD_UNDER_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || \
    __has_feature(memory_sanitizer)
#define PSD_UNDER_SANITIZER 1
#endif
#endif

namespace psd {
namespace {

#ifdef PSD_UNDER_SANITIZER
constexpr size_t kMaxKeptPiece = 0;
#else
constexpr size_t kMaxKeptPiece = kMaxKeptPieceBytes;
#endif

constexpr size_t kUnit = 64;
constexpr size_t kSteps = 8;  // sizes per power of two: at most an eighth is lost
constexpr size_t kClasses = 88;

struct SizeClass {
  size_t index;
  size_t bytes;
};

SizeClass ClassOf(size_t bytes) {
  size_t units = bytes == 0 ? 1 : (bytes + kUnit - 1) / kUnit;
  size_t shift = 0;
  while ((units >> shift) >= 2 * kSteps) ++shift;
  const size_t steps = (units + (size_t{1} << shift) - 1) >> shift;
  return {kSteps * shift + steps, (steps << shift) * kUnit};
}

struct Piece {
  Piece* next;
};

void* Allocate(size_t bytes) {
  return ::operator new (bytes, std::align_val_t{kUnit});
}
void Free(void* address) {
  ::operator delete (address, std::align_val_t{kUnit});
}

// Plain data, so that it may still be used while other objects of an ending thread go.
struct FreeLists {
  Piece* first[kClasses];
  size_t bytes;
  bool closed;
};
thread_local FreeLists lists;

// Empties the lists of a thread that ends.
struct Closer {
  ~Closer() {
    lists.closed = true;
    for (Piece*& first : lists.first) {
      while (first != nullptr) {
        Piece* piece = first;
        first = piece->next;
        Free(piece);
      }
    }
  }
};

void CloseWhenThreadEnds() {
  thread_local Closer closer;
  static_cast<void>(closer);
}

}  // namespace

void* TakeSmallMemory(size_t bytes) {
  if (bytes > kMaxKeptPiece) return Allocate(bytes);
  const SizeClass size = ClassOf(bytes);
  Piece*& first = lists.first[size.index];
  if (first == nullptr) return Allocate(size.bytes);
  Piece* piece = first;
  first = piece->next;
  lists.bytes -= size.bytes;
  return piece;
}

void GiveSmallMemory(void* address, size_t bytes) {
  const SizeClass size = ClassOf(bytes);
  if (bytes > kMaxKeptPiece || lists.closed || lists.bytes + size.bytes > kMaxKeptBytesPerThread) {
    Free(address);
    return;
  }
  if (lists.bytes == 0) CloseWhenThreadEnds();
  lists.first[size.index] = new (address) Piece{lists.first[size.index]};
  lists.bytes += size.bytes;
}

}  // namespace psd
