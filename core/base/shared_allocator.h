#pragma once

#include <cstddef>
#include <memory>

#include "core/base/buffer.h"
#include "core/base/log.h"

namespace psd {

struct SharedAllocatorOptions {
  // Blocks of at least this size get a segment of their own. A lower bound makes more messages
  // travel without a copy, and costs a descriptor and a mapping for each block.
  size_t segment_threshold_bytes = size_t{256} << 10;
  // Upper bound on the bytes of freed memory that are kept for reuse, segments and ordinary memory
  // together. A process that has mapped a segment keeps its mapping, so reuse also saves the work
  // of sending and mapping a new one. With 0 all freed memory goes back to the system at once;
  // otherwise when it is not used (Allocator::ReleaseUnused).
  size_t cache_bytes = 0;
  // Hears once, as a warning ("segments_refused"), if the system refuses a segment. May be null.
  // Shared with its creator; the blocks do not keep it alive.
  std::shared_ptr<Logger> logger;
};

// Returns an allocator whose large blocks other processes of the host may map for reading, each in
// a SharedSegment. Smaller blocks, and blocks for which the system refuses a segment, are ordinary
// process memory; so Allocate fails only if there is no such memory either. The segment of a block
// is used for another block after this one is freed, unless the segment has been retired.
std::shared_ptr<Allocator> NewSharedAllocator(const SharedAllocatorOptions& options);

}  // namespace psd
