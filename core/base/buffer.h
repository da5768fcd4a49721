#pragma once

// Memory that is passed on without copying: blocks from an allocator, and read-only slices of them.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/base/memory_place.h"

namespace psd {

// Every block starts at a multiple of this many bytes (one cache line, and the widest vector
// register). The bytes between the end of a block and the next multiple may be read, but not
// written.
inline constexpr size_t kBlockAlignment = 64;

// A region of memory that knows where it lives. Its creator may write to it until it shares the
// block with others; after that nobody may (this is a convention, the type does not enforce it).
// The destructor gives the memory back to the allocator.
class Block {
 public:
  virtual ~Block() = default;
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  // The host may follow the address only if place().host_readable().
  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  const MemoryPlace& place() const { return *place_; }
  // Where the block starts in its segment, in bytes. 0 for a block in no segment.
  size_t offset() const { return offset_; }

 protected:
  // Requires: `place` outlives the block.
  Block(std::byte* data, size_t size, const MemoryPlace& place = kHeapPlace, size_t offset = 0)
      : data_(data), size_(size), place_(&place), offset_(offset) {}

 private:
  std::byte* const data_;
  const size_t size_;
  const MemoryPlace* const place_;
  const size_t offset_;
};

// Allocates blocks. Thread-safe. It may be destroyed before its blocks, which keep alive what they
// need. Their memory then goes back to the system when they are freed.
class Allocator {
 public:
  virtual ~Allocator() = default;

  // Returns a block of `bytes` bytes with undefined contents; zero bytes are allowed.
  // Errors: RESOURCE_EXHAUSTED naming the size, if the system has no memory or a budget is spent.
  virtual absl::StatusOr<std::shared_ptr<Block>> Allocate(size_t bytes) = 0;
  // Gives freed memory back to the system that was kept for reuse, and that nobody has used since
  // the previous call. May take milliseconds.
  virtual void ReleaseUnused() {}
};

struct HeapAllocatorOptions {
  // Blocks of at least this size get a memory mapping of their own, with huge pages where the
  // system allows them. The mapping is removed or cached when the block is freed.
  size_t map_threshold_bytes = size_t{1} << 20;
  // Upper bound on the bytes of freed mappings that are kept for reuse; using a page again costs a
  // third of using a fresh one. With 0 every mapping goes back to the system at once; otherwise
  // when it is not used (Allocator::ReleaseUnused).
  size_t cache_bytes = 0;
};

// Returns an allocator of ordinary process memory.
std::shared_ptr<Allocator> NewHeapAllocator(const HeapAllocatorOptions& options = {});

// A read-only slice of memory, together with a reference to the object that keeps this memory
// alive. Copies of a Buffer share the bytes, which never change, unless another process lent them
// (MemoryPlace::Kind::kForeign; see StableBytes). Thread-compatible.
class Buffer {
 public:
  Buffer() = default;
  // `block` is the block that the bytes belong to; null for heap memory that belongs to no block.
  // Requires: `owner` keeps the bytes [data, data + size) and `block` alive and unchanged.
  Buffer(std::shared_ptr<const void> owner, const std::byte* data, size_t size,
         const Block* block = nullptr)
      : owner_(std::move(owner)), data_(data), size_(size), block_(block) {}
  // Covers all of `block`.
  explicit Buffer(const std::shared_ptr<const Block>& block)
      : Buffer(block, block->data(), block->size(), block.get()) {}

  // Takes over `bytes` without copying their heap memory.
  static Buffer FromString(std::string bytes);

  // The host may follow the address only if place().host_readable().
  const std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  absl::string_view view() const { return {reinterpret_cast<const char*>(data_), size_}; }
  const std::shared_ptr<const void>& owner() const& { return owner_; }
  std::shared_ptr<const void> owner() && { return std::move(owner_); }
  // The block that the bytes belong to, which lives as long as owner(). Null for heap memory that
  // belongs to no block.
  const Block* block() const { return block_; }
  const MemoryPlace& place() const { return block_ == nullptr ? kHeapPlace : block_->place(); }
  // The offset of the bytes in their segment. 0 if they are in no segment.
  size_t segment_offset() const {
    if (place().kind() != MemoryPlace::Kind::kSegment) return 0;
    return block_->offset() + static_cast<size_t>(data_ - block_->data());
  }

  // Requires: offset + size <= this->size().
  Buffer Slice(size_t offset, size_t size) const {
    return Buffer(owner_, data_ + offset, size, block_);
  }

 private:
  std::shared_ptr<const void> owner_;  // shared by all slices of the same memory
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
  const Block* block_ = nullptr;
};

// Returns `bytes`, or a copy on the heap if another process may change them at any time. Bytes that
// are checked first and used later, such as messages and indexes, must be stable. Errors:
// RESOURCE_EXHAUSTED, if there is no memory for the copy.
absl::StatusOr<Buffer> StableBytes(const Buffer& bytes);

}  // namespace psd
