#include "core/base/small_memory.h"

#include <algorithm>
#include <atomic>
#include <iterator>
#include <new>

#include "absl/types/span.h"
#include "core/base/aligned_memory.h"
#include "core/base/slab_heap.h"
#include "core/base/small_memory_limit.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define PSD_UNDER_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || \
    __has_feature(memory_sanitizer)
#define PSD_UNDER_SANITIZER 1
#endif
#endif

namespace psd::internal {
namespace {

// Whether free pieces are kept. If not, all memory goes to the allocator, so that a sanitizer sees
// each use after free.
#ifdef PSD_UNDER_SANITIZER
constexpr bool kKeeps = false;
#else
constexpr bool kKeeps = true;
#endif

constexpr size_t kUnit = kSmallMemoryUnit;
static_assert(kUnit <= kMallocAlignment);
constexpr size_t kStepBits = 3;
constexpr size_t kSteps = size_t{1} << kStepBits;  // size classes per power of two
static_assert(kUnitClasses < 2 * kSteps);

struct SizeClass {
  size_t index;
  size_t bytes;
};

inline SizeClass ClassOf(size_t bytes) {
  const size_t units = bytes == 0 ? 1 : (bytes + kUnit - 1) / kUnit;
  // `shift` is the least number for which units >> shift is below 2 * kSteps.
  const auto bits = static_cast<size_t>(64 - __builtin_clzll(units));
  const size_t shift = bits > kStepBits + 1 ? bits - kStepBits - 1 : 0;
  const size_t steps = (units + (size_t{1} << shift) - 1) >> shift;
  return {kSteps * shift + steps, (steps << shift) * kUnit};
}

size_t BytesOfClass(size_t index) {
  const size_t shift = index < 2 * kSteps ? 0 : index / kSteps - 1;
  return ((index - kSteps * shift) << shift) * kUnit;
}

void* Allocate(size_t bytes) {
  void* const address = AllocateAligned(bytes);
  if (address == nullptr) throw std::bad_alloc();
  return address;
}
void Free(void* address) {
  FreeAligned(address);
}

// The limits on what moves between a thread's list and the shared heap at once.
constexpr size_t kBatchPieces = 32;
constexpr size_t kBatchBytes = size_t{16} << 10;
static_assert(kUnit == kSlabUnitBytes);

// The heap that all threads share. It is never destroyed, since pieces may be given back while the
// process ends.
SlabHeap& Heap() {
  static SlabHeap& heap = *new SlabHeap;
  return heap;
}

size_t BatchPieces(size_t bytes) {
  return std::clamp<size_t>(kBatchBytes / bytes, 1, kBatchPieces);
}

FreeLists& Lists() {
  return free_lists;
}

// Gives a batch of pieces of the list back to the heap. Requires: the list is not empty.
void GiveBatch(const SizeClass& size) {
  FreeLists& lists = Lists();
  void* pieces[kBatchPieces];
  size_t count = 0;
  FreePiece*& first = lists.first[size.index];
  for (const size_t most = BatchPieces(size.bytes); count < most && first != nullptr; ++count) {
    pieces[count] = first;
    first = first->next;
  }
  lists.bytes -= count * size.bytes;
  if (size.bytes <= kMaxSlabPieceBytes) return Heap().Give({pieces, count});
  for (size_t i = 0; i < count; ++i) Free(pieces[i]);
}

// Empties the lists of the thread when it ends.
struct Closer {
  ~Closer() {
    FreeLists& lists = Lists();
    lists.closed = true;
    lists.max_bytes = 0;
    for (size_t index = 0; index < std::size(lists.first); ++index)
      while (lists.first[index] != nullptr) GiveBatch({index, BytesOfClass(index)});
  }
};

// The bound for threads that begin to keep pieces from now on.
std::atomic<size_t> kept_bytes_per_thread{kMaxKeptBytesPerThread};

// Lets this thread keep pieces from now until it ends.
void Open() {
  thread_local Closer closer;
  static_cast<void>(closer);
  Lists().max_bytes = kept_bytes_per_thread;
}

void Keep(void* piece, const SizeClass& size) {
  FreeLists& lists = Lists();
  lists.first[size.index] = new (piece) FreePiece{lists.first[size.index]};
  lists.bytes += size.bytes;
}

// Gives pieces of one size back if the lists have more than the bound. The first call in a thread
// opens the lists.
void Shrink(const SizeClass& size) {
  const FreeLists& lists = Lists();
  if (lists.bytes <= lists.max_bytes) return;
  if (lists.max_bytes == 0 && !lists.closed) Open();
  if (lists.bytes > lists.max_bytes) GiveBatch(size);
}

// Takes a batch of pieces from the heap, returns the first and keeps the others in the list, lowest
// address first.
void* TakeBatch(const SizeClass& size) {
  if (size.bytes > kMaxSlabPieceBytes) return Allocate(size.bytes);
  const FreeLists& lists = Lists();
  if (lists.max_bytes == 0 && !lists.closed) Open();
  void* pieces[kBatchPieces];
  const size_t wanted = lists.closed ? 1 : BatchPieces(size.bytes);
  size_t count = Heap().Take(size.bytes, {pieces, wanted});
  if (count == 0) throw std::bad_alloc();  // as operator new does
  while (--count > 0) Keep(pieces[count], size);
  return pieces[0];
}

}  // namespace

void* TakeElsewhere(size_t bytes) {
  if (!kKeeps || bytes > kMaxKeptPieceBytes) return Allocate(bytes);
  const SizeClass size = ClassOf(bytes);
  FreeLists& lists = Lists();
  FreePiece*& first = lists.first[size.index];
  if (first == nullptr) return TakeBatch(size);
  FreePiece* piece = first;
  first = piece->next;
  lists.bytes -= size.bytes;
  return piece;
}

void GiveElsewhere(void* address, size_t bytes) {
  if (!kKeeps || bytes > kMaxKeptPieceBytes) return Free(address);
  const SizeClass size = ClassOf(bytes);
  Keep(address, size);
  Shrink(size);
}

}  // namespace psd::internal

namespace psd {

void LimitKeptSmallMemory(size_t budget_bytes) {
  internal::kept_bytes_per_thread = std::min(kMaxKeptBytesPerThread, budget_bytes / 512);
  internal::Heap().LimitEmpty(budget_bytes / 64);
}

}  // namespace psd
