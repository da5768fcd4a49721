#pragma once

// An allocator of ordinary process memory that shares one bound on freed memory with other caches.

#include <cstddef>
#include <memory>

#include "core/base/buffer.h"
#include "core/base/length_cache.h"

namespace psd {

// As NewHeapAllocator in buffer.h, but the bytes of freed mappings that are kept for reuse are
// taken from `room`, which other caches may share.
std::shared_ptr<Allocator> NewHeapAllocator(size_t map_threshold_bytes,
                                            std::shared_ptr<CacheRoom> room);

}  // namespace psd
