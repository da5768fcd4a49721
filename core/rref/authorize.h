#pragma once

// Asks rpc::Access about values that a method has found.

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "core/rpc/access.h"
#include "core/store/store.h"

namespace psd::rref {

// Errors: PERMISSION_DENIED naming the first value that is denied, by its name or its id.
absl::Status Authorize(rpc::Access& access, const rpc::Asker& asker, rpc::Right right,
                       const store::Entry& entry);
absl::Status Authorize(rpc::Access& access, const rpc::Asker& asker, rpc::Right right,
                       absl::Span<const store::EntryPtr> entries);
// Asks once for all values of a group that the store remembers.
absl::Status Authorize(rpc::Access& access, const rpc::Asker& asker, rpc::Right right,
                       const store::EntryGroup& group);

}  // namespace psd::rref
