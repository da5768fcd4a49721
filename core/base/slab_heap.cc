#include "core/base/slab_heap.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <new>

#include "core/base/aligned_mapping.h"
#include "core/base/status.h"

namespace psd {
namespace {

constexpr size_t kChunkBytes = kHugePageBytes;
constexpr size_t kSpanBytes = size_t{64} << 10;
constexpr size_t kSpans = kChunkBytes / kSpanBytes;
constexpr size_t kHeaderBytes = size_t{4} << 10;  // of a chunk, in front of its first span's pieces

struct Piece {
  Piece* next;
};

std::byte* ChunkStart(const void* inside) {
  return reinterpret_cast<std::byte*>(reinterpret_cast<uintptr_t>(inside) &
                                      ~uintptr_t{kChunkBytes - 1});
}

}  // namespace

struct SlabHeap::Span {
  size_t bytes = 0;  // the size of a piece; 0 if the span is free
  size_t taken = 0;
  size_t cut = 0;  // number of pieces ever taken; all pieces from this index on are free
  size_t capacity = 0;
  Piece* free = nullptr;  // list of the pieces that were given back
  Span* previous = nullptr;
  Span* next = nullptr;

  bool full() const { return taken == capacity; }
};

struct SlabHeap::Chunk {
  Span spans[kSpans];
  size_t free_spans = kSpans;

  std::byte* start(const Span* span) {
    auto* base = reinterpret_cast<std::byte*>(this);
    const auto index = static_cast<size_t>(span - spans);
    return base + (index == 0 ? kHeaderBytes : index * kSpanBytes);
  }
  size_t capacity(const Span* span, size_t bytes) const {
    return (span == spans ? kSpanBytes - kHeaderBytes : kSpanBytes) / bytes;
  }
};

SlabHeap::~SlabHeap() {
  MutexLock lock(mutex_);
  PSD_CHECK(chunks_ == empty_chunks_, "a heap outlives its pieces");
  for (Chunk* chunk : with_room_) munmap(chunk, kChunkBytes);
}

size_t SlabHeap::Take(size_t bytes, absl::Span<void*> pieces) {
  MutexLock lock(mutex_);
  size_t taken = 0;
  while (taken < pieces.size()) {
    Span* span = open_[bytes / kSlabUnitBytes - 1];
    if (span == nullptr) span = OpenSpan(bytes);
    if (span == nullptr) break;
    taken += TakeFrom(*span, pieces.subspan(taken));
    if (span->full()) Unlink(span);
  }
  return taken;
}

void SlabHeap::Give(absl::Span<void* const> pieces) {
  MutexLock lock(mutex_);
  for (void* piece : pieces) GiveOne(piece);
}

void SlabHeap::LimitEmpty(size_t bytes) {
  MutexLock lock(mutex_);
  max_empty_chunks_ = std::min(kMaxEmptyChunks, bytes / kChunkBytes);
}

size_t SlabHeap::mapped_bytes() const {
  MutexLock lock(mutex_);
  return chunks_ * kChunkBytes;
}

size_t SlabHeap::TakeFrom(Span& span, absl::Span<void*> pieces) {
  const size_t count = std::min(pieces.size(), span.capacity - span.taken);
  size_t taken = 0;
  for (; taken < count && span.free != nullptr; ++taken) {
    pieces[taken] = span.free;
    span.free = span.free->next;
  }
  std::byte* const start = reinterpret_cast<Chunk*>(ChunkStart(&span))->start(&span);
  for (; taken < count; ++taken) pieces[taken] = start + span.cut++ * span.bytes;
  span.taken += count;
  return count;
}

void SlabHeap::GiveOne(void* piece) {
  std::byte* start = ChunkStart(piece);
  const auto offset = static_cast<size_t>(static_cast<std::byte*>(piece) - start);
  Span* span = &reinterpret_cast<Chunk*>(start)->spans[offset / kSpanBytes];
  if (span->full()) Link(span);
  span->free = new (piece) Piece{span->free};
  if (--span->taken == 0) CloseSpan(span);
}

SlabHeap::Span* SlabHeap::OpenSpan(size_t bytes) {
  Chunk* chunk = ChunkWithRoom();
  if (chunk == nullptr) return nullptr;
  Span* span = chunk->spans;
  while (span->bytes != 0) ++span;
  if (chunk->free_spans == kSpans) --empty_chunks_;
  if (--chunk->free_spans == 0) with_room_.erase(chunk);
  *span = Span{};
  span->bytes = bytes;
  span->capacity = chunk->capacity(span, bytes);
  Link(span);
  return span;
}

void SlabHeap::CloseSpan(Span* span) {
  Unlink(span);
  span->bytes = 0;
  auto* chunk = reinterpret_cast<Chunk*>(ChunkStart(span));
  with_room_.insert(chunk);
  if (++chunk->free_spans < kSpans) return;
  if (empty_chunks_ < max_empty_chunks_) {
    ++empty_chunks_;
    return;
  }
  with_room_.erase(chunk);
  --chunks_;
  munmap(chunk, kChunkBytes);
}

SlabHeap::Chunk* SlabHeap::ChunkWithRoom() {
  if (!with_room_.empty()) return *with_room_.begin();
  void* address = MapAligned(kChunkBytes, kHugePageBytes);
  if (address == nullptr) return nullptr;
  static_assert(sizeof(Chunk) <= kHeaderBytes);
  ++chunks_;
  ++empty_chunks_;
  return *with_room_.insert(new (address) Chunk).first;
}

void SlabHeap::Link(Span* span) {
  Span*& first = open_[span->bytes / kSlabUnitBytes - 1];
  span->previous = nullptr;
  span->next = first;
  if (first != nullptr) first->previous = span;
  first = span;
}

void SlabHeap::Unlink(Span* span) {
  Span*& first = open_[span->bytes / kSlabUnitBytes - 1];
  (span->previous == nullptr ? first : span->previous->next) = span->next;
  if (span->next != nullptr) span->next->previous = span->previous;
}

}  // namespace psd
