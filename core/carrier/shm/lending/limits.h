#pragma once

// Bounds on what two ends of a link lend each other. Both ends keep to the same numbers: who lends
// stays below them, and who borrows ends the link of a peer that exceeds them.

#include <cstddef>

namespace psd::carrier {

// A message is lent only if a buffer of at least this size lies in a segment. Copying a smaller one
// takes less time than the exchange about its lease.
inline constexpr size_t kLeastLentBytes = size_t{256} << 10;
// The most leases of one end that are out at a time.
inline constexpr size_t kMaxLeases = 4096;
// The most segments of one end that the other end knows at a time.
inline constexpr size_t kMaxSegments = 16384;

}  // namespace psd::carrier
