#pragma once

// Asks rpc::Access about values that a method has found or looks for by name.

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/rpc/access.h"
#include "core/store/store.h"

namespace psd::rref {

// Errors: PERMISSION_DENIED naming the first value that is denied, by its name or its id.
absl::Status Authorize(rpc::Access& access, const rpc::Asker& asker, rpc::Right right,
                       const store::Entry& entry);
absl::Status Authorize(rpc::Access& access, const rpc::Asker& asker, rpc::Right right,
                       absl::Span<const store::EntryPtr> entries);
// As above, for all values of a group that the store remembers. Asks once for the whole group.
absl::Status Authorize(rpc::Access& access, const rpc::Asker& asker, rpc::Right right,
                       const store::EntryGroup& group);

// Returns the value called `name`. Access is checked before the name is looked up, so that a caller
// without the right does not learn which names exist. Errors: PERMISSION_DENIED; NOT_FOUND as
// UnknownName.
absl::StatusOr<store::EntryPtr> FindNamed(rpc::Access& access, const store::Store& store,
                                          const rpc::Asker& asker, rpc::Right right,
                                          const std::string& name);
// Returns the error NOT_FOUND for a name. It tells the nearest name to a caller that may list all
// names.
absl::Status UnknownName(rpc::Access& access, const store::Store& store, const rpc::Asker& asker,
                         const std::string& name);

}  // namespace psd::rref
