#include "core/base/buffer.h"

#include <sys/mman.h>

#include <cstdint>
#include <map>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/aligned_mapping.h"
#include "core/base/aligned_memory.h"
#include "core/base/mutex.h"
#include "core/base/small_memory.h"

namespace psd {
namespace {

size_t RoundUp(size_t bytes, size_t multiple) {
  return (bytes + multiple - 1) / multiple * multiple;
}

// Mappings have lengths that are multiples of this unit, so that they can be reused for blocks of a
// similar size. The part of a huge page behind a block becomes resident with the block and is
// charged to no account, so for blocks of at least a huge page the unit is at most an eighth of the
// block.
size_t MappingUnit(size_t bytes) {
  if (bytes < kHugePageBytes) return kPageBytes;
  return bytes < 8 * kHugePageBytes ? kHugePageBytes / 8 : kHugePageBytes;
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

// Keeps freed mappings for reuse, by length, up to a bound on their bytes. Thread-safe.
class MappingCache {
 public:
  explicit MappingCache(size_t bound_bytes) : bound_bytes_(bound_bytes) {}
  ~MappingCache() {
    for (auto& [length, address] : free_) munmap(address, length);
  }

  void* Take(size_t length) PSD_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    auto found = free_.find(length);
    if (found == free_.end()) return nullptr;
    void* address = found->second;
    free_.erase(found);
    bytes_ -= length;
    return address;
  }

  void Give(void* address, size_t length) PSD_EXCLUDES(mutex_) {
    {
      MutexLock lock(mutex_);
      if (bytes_ + length <= bound_bytes_) {
        free_.emplace(length, address);
        bytes_ += length;
        return;
      }
    }
    munmap(address, length);
  }

 private:
  const size_t bound_bytes_;
  Mutex mutex_;  // leaf
  size_t bytes_ PSD_GUARDED_BY(mutex_) = 0;
  std::multimap<size_t, void*> free_ PSD_GUARDED_BY(mutex_);
};

class MappedBlock : public Block {
 public:
  MappedBlock(std::byte* data, size_t size, size_t length, std::shared_ptr<MappingCache> cache)
      : Block(data, size), length_(length), cache_(std::move(cache)) {}
  ~MappedBlock() override { cache_->Give(data(), length_); }

 private:
  const size_t length_;
  const std::shared_ptr<MappingCache> cache_;  // shared by the allocator and its live blocks
};

class HeapAllocator : public Allocator {
 public:
  explicit HeapAllocator(const HeapAllocatorOptions& options)
      : options_(options), cache_(std::make_shared<MappingCache>(options.cache_bytes)) {}

  absl::StatusOr<std::shared_ptr<Block>> Allocate(size_t bytes) override {
    if (bytes > SIZE_MAX / 2) return OutOfMemory(bytes);
    if (bytes >= options_.map_threshold_bytes) return AllocateMapped(bytes);
    if (bytes <= kMaxSmallBytes) return AllocateSmall(bytes);
    return AllocateMiddle(bytes);
  }

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
    const bool huge = bytes >= kHugePageBytes;
    const size_t length = RoundUp(bytes == 0 ? 1 : bytes, MappingUnit(bytes));
    void* address = cache_->Take(length);
    if (address == nullptr) {
      address = MapAligned(length, huge ? kHugePageBytes : kPageBytes);
      if (address == nullptr) return OutOfMemory(bytes);
    }
    return std::make_shared<MappedBlock>(static_cast<std::byte*>(address), bytes, length, cache_);
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

}  // namespace psd
