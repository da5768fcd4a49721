#pragma once

// A heap of small pieces of memory, which lie close together in huge pages. A walk over thousands
// of them needs a dozen entries of the processor's TLB instead of thousands.
//
// A chunk is one huge page of 32 spans. While any of its pieces is taken, a span has pieces of one
// size. The pieces of a fresh span are taken in the order of their addresses. A new span is opened
// at the lowest free address, so that chunks at high addresses run empty. Up to kMaxEmptyChunks
// empty chunks are kept, or fewer (LimitEmpty); further ones go back to the system at once.

#include <array>
#include <cstddef>
#include <set>

#include "absl/types/span.h"
#include "core/base/mutex.h"

namespace psd {

inline constexpr size_t kSlabUnitBytes = 64;                   // the size of a piece is a multiple
inline constexpr size_t kMaxSlabPieceBytes = size_t{8} << 10;  // the largest piece
inline constexpr size_t kMaxEmptyChunks = 16;                  // 32 MiB

// A heap for pieces of all sizes up to kMaxSlabPieceBytes. Thread-safe. It must outlive its pieces.
class SlabHeap {
 public:
  SlabHeap() = default;
  // Requires: every piece has been given back.
  ~SlabHeap();
  SlabHeap(const SlabHeap&) = delete;
  SlabHeap& operator=(const SlabHeap&) = delete;

  // Sets the elements of `pieces` to pieces of `bytes` bytes, whose addresses are multiples of
  // kSlabUnitBytes. Returns how many it set; these are all unless the system has no more memory.
  // Requires: 0 < bytes <= kMaxSlabPieceBytes, and `bytes` is a multiple of kSlabUnitBytes.
  size_t Take(size_t bytes, absl::Span<void*> pieces) PSD_EXCLUDES(mutex_);
  // Gives pieces back; their sizes may differ.
  // Requires: they came from Take of this heap and are no longer used.
  void Give(absl::Span<void* const> pieces) PSD_EXCLUDES(mutex_);

  // From now on keeps at most `bytes` of empty chunks, and never more than kMaxEmptyChunks.
  void LimitEmpty(size_t bytes) PSD_EXCLUDES(mutex_);

  // The bytes of all chunks, with their free pieces and spans and the empty chunks that are kept.
  size_t mapped_bytes() const PSD_EXCLUDES(mutex_);

 private:
  struct Chunk;
  struct Span;

  // Takes as many pieces from `span` as fit, up to those that are asked for, and returns how many.
  size_t TakeFrom(Span& span, absl::Span<void*> pieces) PSD_REQUIRES(mutex_);
  void GiveOne(void* piece) PSD_REQUIRES(mutex_);
  // Sets a free span up for pieces of `bytes` bytes; returns null if there is no memory.
  Span* OpenSpan(size_t bytes) PSD_REQUIRES(mutex_);
  void CloseSpan(Span* span) PSD_REQUIRES(mutex_);
  Chunk* ChunkWithRoom() PSD_REQUIRES(mutex_);
  void Link(Span* span) PSD_REQUIRES(mutex_);
  void Unlink(Span* span) PSD_REQUIRES(mutex_);

  mutable Mutex mutex_;  // leaf
  // For every size of piece, the list of spans that have free pieces.
  std::array<Span*, kMaxSlabPieceBytes / kSlabUnitBytes> open_ PSD_GUARDED_BY(mutex_) = {};
  std::set<Chunk*> with_room_ PSD_GUARDED_BY(mutex_);  // chunks with free spans
  size_t chunks_ PSD_GUARDED_BY(mutex_) = 0;
  size_t empty_chunks_ PSD_GUARDED_BY(mutex_) = 0;  // all their spans are free
  size_t max_empty_chunks_ PSD_GUARDED_BY(mutex_) = kMaxEmptyChunks;
};

}  // namespace psd
