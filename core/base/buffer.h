#pragma once

// Bytes that are shared and never copied on their way: blocks from an allocator, and slices of
// them.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace psd {

// Every block starts at a multiple of this, and may be read (not written) up to the next multiple
// behind its end: a cache line and the widest vector register.
inline constexpr size_t kBlockAlignment = 64;

// A writable region of memory. Whoever made it may write until it is shared; from then on it is
// read-only by agreement. Destroying it gives the memory back to its allocator.
class Block {
 public:
  virtual ~Block() = default;
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }

 protected:
  Block(std::byte* data, size_t size) : data_(data), size_(size) {}

 private:
  std::byte* const data_;
  const size_t size_;
};

// Where blocks come from. Thread-safe; must outlive nothing: blocks keep what they need of it.
class Allocator {
 public:
  virtual ~Allocator() = default;

  // A block of `bytes` bytes (zero is legal) with undefined contents.
  // Errors: RESOURCE_EXHAUSTED naming the size when the system or a budget has no more.
  virtual absl::StatusOr<std::shared_ptr<Block>> Allocate(size_t bytes) = 0;
};

struct HeapAllocatorOptions {
  // Blocks of at least this size bypass malloc: mapped on their own, with huge pages where
  // allowed, and unmapped when freed.
  size_t map_threshold_bytes = size_t{1} << 20;
  // Freed mappings kept for reuse, at most: a warm page costs a third of a fresh one. 0 gives
  // every block back to the system at once.
  size_t cache_bytes = 0;
};

// Ordinary process memory.
std::shared_ptr<Allocator> NewHeapAllocator(const HeapAllocatorOptions& options = {});

// A read-only slice of memory that something else keeps alive. A value: copies share the bytes.
// Thread-compatible; the bytes themselves never change.
class Buffer {
 public:
  Buffer() = default;
  // `owner` keeps [data, data + size) alive and unchanged.
  Buffer(std::shared_ptr<const void> owner, const std::byte* data, size_t size)
      : owner_(std::move(owner)), data_(data), size_(size) {}
  // All of `block`.
  explicit Buffer(std::shared_ptr<const Block> block)
      : Buffer(block, block->data(), block->size()) {}

  static Buffer FromString(std::string bytes);

  const std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  absl::string_view view() const { return {reinterpret_cast<const char*>(data_), size_}; }
  const std::shared_ptr<const void>& owner() const& { return owner_; }
  std::shared_ptr<const void> owner() && { return std::move(owner_); }

  // Requires: offset + size <= this->size().
  Buffer Slice(size_t offset, size_t size) const { return Buffer(owner_, data_ + offset, size); }

 private:
  std::shared_ptr<const void> owner_;  // shared by all slices of the same memory
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace psd
