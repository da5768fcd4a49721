#include "core/base/buffer.h"

#include <cstdint>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/aligned_mapping.h"
#include "core/base/aligned_memory.h"
#include "core/base/length_cache.h"
#include "core/base/memory_mapping.h"
#include "core/base/small_memory.h"
#include "core/base/status.h"

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
  explicit HeapAllocator(const HeapAllocatorOptions& options)
      : options_(options), cache_(std::make_shared<MappingCache>(options.cache_bytes)) {}
  ~HeapAllocator() override { cache_->Close(); }

  absl::StatusOr<std::shared_ptr<Block>> Allocate(size_t bytes) override {
    if (bytes > SIZE_MAX / 2) return OutOfMemory(bytes);
    if (bytes >= options_.map_threshold_bytes) return AllocateMapped(bytes);
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

  const HeapAllocatorOptions options_;
  const std::shared_ptr<MappingCache> cache_;  // shared with the live blocks
};

}  // namespace

std::shared_ptr<Allocator> NewHeapAllocator(const HeapAllocatorOptions& options) {
  return std::make_shared<HeapAllocator>(options);
}

Buffer Buffer::FromString(std::string bytes) {
  auto owner = std::make_shared<const std::string>(std::move(bytes));
  const auto* data = reinterpret_cast<const std::byte*>(owner->data());
  size_t size = owner->size();
  return Buffer(std::move(owner), data, size);
}

absl::StatusOr<Buffer> StableBytes(const Buffer& bytes) {
  if (bytes.place().kind() != MemoryPlace::Kind::kForeign) return bytes;
  PSD_ASSIGN_OR_RETURN(const std::shared_ptr<Block> copy,
                       NewHeapAllocator()->Allocate(bytes.size()));
  if (!bytes.empty()) std::memcpy(copy->data(), bytes.data(), bytes.size());
  return Buffer(copy);
}

}  // namespace psd
