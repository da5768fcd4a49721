#include "core/runtime/worker_memory.h"

#include <utility>

#include "core/base/shared_allocator.h"

namespace psd::worker {

std::shared_ptr<Allocator> NewWorkerAllocator(bool shared_memory, size_t cache_bytes,
                                              std::shared_ptr<Logger> logger) {
  if (shared_memory) {
    SharedAllocatorOptions shared;
    shared.cache_bytes = cache_bytes;
    shared.logger = std::move(logger);
    return NewSharedAllocator(shared);
  }
  HeapAllocatorOptions heap;
  heap.cache_bytes = cache_bytes;
  return NewHeapAllocator(heap);
}

std::shared_ptr<MemoryBudget> NewWorkerBudget(size_t limit_bytes, bool shared_memory,
                                              const std::shared_ptr<Logger>& logger) {
  return MemoryBudget::Create(limit_bytes, [&](size_t cache_bytes) {
    return NewWorkerAllocator(shared_memory, cache_bytes, logger);
  });
}

}  // namespace psd::worker
