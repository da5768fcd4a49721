#pragma once

// Rules that the links of all carriers follow when they open and when messages are sent.

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/memory_budget.h"
#include "core/carrier/carrier.h"

namespace psd::carrier {

// Returns, for each bound that is exchanged, the smaller of the two ends' values. The bound of the
// send queue is taken from `own`.
Limits SmallerLimits(const Limits& own, const Limits& peer);

// Checks whether a message may be queued behind `queued_bytes` other bytes for the peer at
// `address`. Errors: INVALID_ARGUMENT or RESOURCE_EXHAUSTED by `limits`, naming size, bound and
// remedy.
absl::Status CheckMaySend(const Message& message, size_t queued_bytes, const Limits& limits,
                          const std::string& address);

// Charges those parts of a queued message that no account counts yet: its header, its table of
// buffers, and small buffers. Errors: RESOURCE_EXHAUSTED.
absl::StatusOr<MemoryCharge> ChargeQueued(const Message& message, MemoryAccount& account,
                                          const std::string& address);

// Returns the error of Connect for a link that ended for `reason` before it was open.
absl::Status ConnectError(const absl::Status& reason);

}  // namespace psd::carrier
