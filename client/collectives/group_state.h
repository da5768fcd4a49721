#pragma once

// The implementation of Group. Internal to client/collectives/.

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "client/collectives/group.h"
#include "core/base/device.h"
#include "core/base/executor.h"
#include "core/base/ids.h"
#include "core/services/collectives/collective_group.h"
#include "core/services/collectives/device_calls.h"

namespace psd {

// The most time that Leave waits until the other ranks have received everything.
inline constexpr absl::Duration kMostLeaving = absl::Seconds(10);

struct Group::State {
  std::string name;
  std::vector<std::string> members;       // by rank
  std::vector<Incarnation> incarnations;  // of the members
  int rank = 0;
  absl::Duration timeout;
  // Null in a group of one.
  std::shared_ptr<services::CollectiveGroup> part;  // shared with the worker's service
  // Makes the calls of `part`. Null unless each member has a device that may communicate directly.
  std::shared_ptr<services::DeviceCalls> device_calls;
  std::shared_ptr<Executor> continuations;       // for callbacks; shared with the worker
  std::vector<std::shared_ptr<Device>> devices;  // those of the worker; shared with it

  // As CollectiveGroup::Leave, for at most the group's timeout.
  void Leave(absl::Duration limit) const {
    if (device_calls != nullptr) return device_calls->Leave(std::min(timeout, limit));
    if (part != nullptr) part->Leave(std::min(timeout, limit));
  }
};

}  // namespace psd
