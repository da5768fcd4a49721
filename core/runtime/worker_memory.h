#pragma once

#include <cstddef>
#include <memory>

#include "core/base/buffer.h"
#include "core/base/log.h"
#include "core/base/memory_budget.h"

namespace psd::worker {

// Returns an allocator for a worker that keeps up to `cache_bytes` of freed memory for reuse. With
// `shared_memory`, its large blocks are in segments, so the carrier can lend them to processes of
// the host instead of copying them (shared_allocator.h).
std::shared_ptr<Allocator> NewWorkerAllocator(bool shared_memory, size_t cache_bytes,
                                              std::shared_ptr<Logger> logger);

// Returns a budget whose memory comes from such allocators. A `limit_bytes` of 0 means no limit.
std::shared_ptr<MemoryBudget> NewWorkerBudget(size_t limit_bytes, bool shared_memory,
                                              const std::shared_ptr<Logger>& logger);

}  // namespace psd::worker
