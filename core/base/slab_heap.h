#pragma once

// Small pieces of memory, close together: cut from huge pages, so that a walk over thousands of
// them needs a dozen entries of the processor's table of pages instead of thousands.
//
// A chunk is one huge page of 32 spans. A span holds pieces of one size while any of them is taken;
// pieces of a fresh one are handed out in the order of their addresses. Spans are opened at the
// lowest address that is free, so that chunks at high ones run empty. Of those without any piece
// some are kept (kMaxEmptyChunks), the rest goes back to the system at once.

#include <array>
#include <cstddef>
#include <set>

#include "absl/types/span.h"
#include "core/base/mutex.h"

namespace psd {

inline constexpr size_t kSlabUnitBytes = 64;                   // pieces are multiples of it
inline constexpr size_t kMaxSlabPieceBytes = size_t{8} << 10;  // and at most so large
inline constexpr size_t kMaxEmptyChunks = 16;                  // 32 MiB

// Thread-safe. Outlives its pieces.
class SlabHeap {
 public:
  SlabHeap() = default;
  // Requires: every piece was given back.
  ~SlabHeap();
  SlabHeap(const SlabHeap&) = delete;
  SlabHeap& operator=(const SlabHeap&) = delete;

  // Fills `pieces` with pieces of `bytes` bytes each, at multiples of kSlabUnitBytes; returns how
  // many it filled, fewer only when the system has no more memory.
  // Requires: bytes is a multiple of kSlabUnitBytes from one of it to kMaxSlabPieceBytes.
  size_t Take(size_t bytes, absl::Span<void*> pieces) PSD_EXCLUDES(mutex_);
  // Requires: they came from Take and nobody uses them. Sizes may differ.
  void Give(absl::Span<void* const> pieces) PSD_EXCLUDES(mutex_);

  // What it has of the system, with free pieces and kept chunks.
  size_t mapped_bytes() const PSD_EXCLUDES(mutex_);

 private:
  struct Chunk;
  struct Span;

  void* TakeOne(size_t bytes) PSD_REQUIRES(mutex_);
  void GiveOne(void* piece) PSD_REQUIRES(mutex_);
  // Makes a free span one for pieces of `bytes` bytes; null without memory.
  Span* OpenSpan(size_t bytes) PSD_REQUIRES(mutex_);
  void CloseSpan(Span* span) PSD_REQUIRES(mutex_);
  Chunk* ChunkWithRoom() PSD_REQUIRES(mutex_);
  void Link(Span* span) PSD_REQUIRES(mutex_);
  void Unlink(Span* span) PSD_REQUIRES(mutex_);

  mutable Mutex mutex_;  // leaf
  // Spans that have both taken and free pieces, or none taken yet, by size.
  std::array<Span*, kMaxSlabPieceBytes / kSlabUnitBytes> open_ PSD_GUARDED_BY(mutex_) = {};
  std::set<Chunk*> with_room_ PSD_GUARDED_BY(mutex_);  // chunks with free spans
  size_t chunks_ PSD_GUARDED_BY(mutex_) = 0;
  size_t empty_chunks_ PSD_GUARDED_BY(mutex_) = 0;  // all their spans are free
};

}  // namespace psd
