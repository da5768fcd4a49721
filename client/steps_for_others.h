#pragma once

// The functions of a DistributedOptimizer for trainers that take steps for others. Internal to
// client/.

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/optimizers.h"

namespace psd {

class StepsForOthers {
 public:
  static bool ScalesLosses(const DistributedOptimizer& optimizer);
  // Asks the lead for the present loss scale, which LossScale() returns from then on: steps of
  // other trainers may have changed it. Does nothing if the optimizer scales no losses. Errors:
  // those of a call to the lead.
  static absl::Status RefreshLossScale(DistributedOptimizer& optimizer, absl::Duration timeout);
  // Gives this trainer's seats back, if it has any: no round waits for it until its next step.
  // Another trainer may step for it meanwhile. The owners learn of it a little later.
  static void GiveSeats(DistributedOptimizer& optimizer);
};

}  // namespace psd
