#include "core/base/heap_allocator.h"

#include <cstdint>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "core/base/aligned_mapping.h"
#include "core/base/aligned_memory.h"
#include "core/base/memory_mapping.h"
#include "core/base/small_memory.h"

namespace psd {
namespace {

size_t RoundUp(size_t bytes, size_t multiple) {
  return (bytes + multiple - 1) / multiple * multiple;
}

absl::Status OutOfMemory(size_t bytes) {
  return absl::ResourceExhaustedError(
      absl::StrCat("the system has no memory for a block of ", bytes, " bytes"));
}

class MallocBlock : public Block {
 public:
  MallocBlock(std::byte* data, size_t size) : Block(data, size) {}
  ~MallocBlock() override { FreeAligned(data()); }
};

constexpr size_t kMaxSmallBytes = size_t{64} << 10;

// A block whose bytes follow the object itself: std::allocate_shared places the reference counts,
// the object and the bytes in one piece of memory.
class SmallBlock : public Block {
 public:
  explicit SmallBlock(size_t size)
      : Block(reinterpret_cast<std::byte*>(
                  RoundUp(reinterpret_cast<uintptr_t>(this + 1), kBlockAlignment)),
              size) {}
};

using MappingCache = LengthCache<MemoryMapping>;

class MappedBlock : public Block {
 public:
  MappedBlock(MemoryMapping mapping, size_t size, std::shared_ptr<MappingCache> cache)
      : Block(mapping.data(), size), mapping_(std::move(mapping)), cache_(std::move(cache)) {}
  ~MappedBlock() override {
    const size_t length = mapping_.size();
    cache_->Give(length, std::move(mapping_));
  }

 private:
  MemoryMapping mapping_;
  const std::shared_ptr<MappingCache> cache_;  // shared by the allocator and its live blocks
};

class HeapAllocator : public Allocator {
 public:
  HeapAllocator(size_t map_threshold_bytes, std::shared_ptr<CacheRoom> room)
      : map_threshold_bytes_(map_threshold_bytes),
        cache_(std::make_shared<MappingCache>(std::move(room))) {}
  ~HeapAllocator() override { cache_->Close(); }

  absl::StatusOr<std::shared_ptr<Block>> Allocate(size_t bytes) override {
    if (bytes > SIZE_MAX / 2) return OutOfMemory(bytes);
    if (bytes >= map_threshold_bytes_) return AllocateMapped(bytes);
    if (bytes <= kMaxSmallBytes) return AllocateSmall(bytes);
    return AllocateMiddle(bytes);
  }
  void ReleaseUnused() override { cache_->Age(); }

 private:
  static absl::StatusOr<std::shared_ptr<Block>> AllocateSmall(size_t bytes) {
    const size_t behind = RoundUp(bytes, kBlockAlignment);
    return std::allocate_shared<SmallBlock>(SmallMemoryAllocator<SmallBlock>(behind), bytes);
  }

  static absl::StatusOr<std::shared_ptr<Block>> AllocateMiddle(size_t bytes) {
    static_assert(kBlockAlignment <= kMallocAlignment);
    void* address = AllocateAligned(bytes);
    if (address == nullptr) return OutOfMemory(bytes);
    return std::make_shared<MallocBlock>(static_cast<std::byte*>(address), bytes);
  }

  absl::StatusOr<std::shared_ptr<Block>> AllocateMapped(size_t bytes) {
    const size_t length = MappingLength(bytes);
    std::optional<MemoryMapping> mapping = cache_->Take(length);
    if (!mapping.has_value()) {
      mapping.emplace(MapAligned(length, bytes >= kHugePageBytes ? kHugePageBytes : kPageBytes),
                      length);
      if (mapping->data() == nullptr) return OutOfMemory(bytes);
    }
    return std::make_shared<MappedBlock>(*std::move(mapping), bytes, cache_);
  }

  const size_t map_threshold_bytes_;
  const std::shared_ptr<MappingCache> cache_;  // shared with the live blocks
};

}  // namespace

std::shared_ptr<Allocator> NewHeapAllocator(const HeapAllocatorOptions& options) {
  return NewHeapAllocator(options.map_threshold_bytes,
                          std::make_shared<CacheRoom>(options.cache_bytes));
}

std::shared_ptr<Allocator> NewHeapAllocator(size_t map_threshold_bytes,
                                            std::shared_ptr<CacheRoom> room) {
  return std::make_shared<HeapAllocator>(map_threshold_bytes, std::move(room));
}

}  // namespace psd
