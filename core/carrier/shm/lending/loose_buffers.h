#pragma once

// Which buffers of a message can be lent where they are, and what is done about the others.

#include <cstddef>

#include "core/base/memory_budget.h"
#include "core/base/shared_segment.h"
#include "core/carrier/carrier.h"

namespace psd::carrier {

// Returns the segment by which a lent frame names `buffer`. Null if the bytes must be in the frame:
// the buffer is small, lies in no segment, or does not start at a multiple of kBlockAlignment.
SharedSegment* NamedSegment(const Buffer& buffer);

// Copies those buffers that must be in the frame, and are not small, into one block of `memory`.
// So a few buffers on the heap do not keep the large ones of the same message from being lent.
// Returns the number of bytes copied. It is 0, and the message is as it was, if there are no such
// buffers, if they are larger than those that can be lent, if the frame would still be too large,
// or if `memory` has no segment for them.
size_t GatherLooseBuffers(Message& message, MemoryAccount& memory);

}  // namespace psd::carrier
