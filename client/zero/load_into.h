#pragma once

// Loads a snapshot into this worker's part of an optimizer. Internal to client/zero/.

#include "absl/status/status.h"
#include "client/zero/local_optimizer.h"
#include "client/zero/optimizer_snapshot.h"

namespace psd::zero {

// Checks that `snapshot` is of an optimizer of the type of `local` over `parameters`, and has the
// state that `local` keeps, or would keep, for each of them that requires grad. The others have no
// state, and may be missing in the snapshot. Then gives `local` the options, the counters and the
// state of those parameters that it steps. The checks do not depend on which of the parameters
// `local` steps, so all ranks that load the same snapshot get the same answer.
// Errors: FAILED_PRECONDITION naming what differs, INVALID_ARGUMENT for an option that is unknown
// or out of range, RESOURCE_EXHAUSTED; nothing has changed then.
absl::Status LoadInto(LocalOptimizer& local, const EntryGroups& parameters,
                      const OptimizerSnapshot& snapshot);

}  // namespace psd::zero
