#pragma once

// How the ranks of a group agree on calls of their devices, and connect these.

#include <cstddef>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/device.h"
#include "core/base/device_collectives.h"
#include "core/base/log.h"
#include "core/base/mutex.h"
#include "core/services/collectives/collective_call.h"
#include "core/services/collectives/collective_group.h"
#include "core/services/collectives/device_offer.h"

namespace psd::services {

// A call with fewer bytes than this for each rank goes through memory of the host.
inline constexpr size_t kLeastDeviceBytes = size_t{32} << 10;

// The connections of one rank's devices to those of the other ranks.
//
// Before a call, the ranks tell each other by an all-gather of the group where their tensors are,
// on which GPU, and with which version of the library. If all tensors are on GPUs that can
// communicate, the devices perform the call; otherwise it goes through the host as in other groups.
// Every rank knows the same, so all of them choose the same way. A call of which the ranks differ
// in operation, form, root or label is made through the host, where the group finds the difference.
// When devices first compute together, the ranks connect them by two more calls of the group. A
// communicator that could not be connected is not tried again.
//
// Thread-safe, but every rank must agree on the calls of the group in the same order.
class DeviceConnections {
 public:
  using Communicator = std::shared_ptr<DeviceCommunicator>;  // shared with calls under way

  // The most different sets of GPUs that the ranks of a group connect.
  static constexpr size_t kMostCommunicators = 4;
  static constexpr absl::Duration kMostFinishing = absl::Seconds(5);

  // Requires: `group` lives longer, and `logger` exists until the group is closed.
  DeviceConnections(CollectiveGroup& group, Logger& logger) : group_(group), logger_(logger) {}

  // A call on whose way the ranks agree.
  struct Wanted {
    const CollectiveCall& call;
    Device* device = nullptr;  // that of this rank's tensor; null for the host
    absl::Time until;
  };
  // Agrees with the other ranks on the way of the call. Returns null for the way through the host.
  // Errors: those of the group's calls.
  absl::StatusOr<Communicator> Agree(const Wanted& wanted) PSD_EXCLUDES(mutex_);

  // Waits until the communicator is ready. Errors: those of the communicator; the group's failure;
  // DEADLINE_EXCEEDED.
  absl::Status Await(DeviceCommunicator& communicator, absl::Time until);
  // How long a call of the group may take that must end at `until`: at least a millisecond.
  absl::Duration TimeLeft(absl::Time until) const;

  // This rank's part in the group has ended. If it has left, the communicators end in an orderly
  // way, for which it waits at most kMostFinishing. Otherwise they are aborted.
  void End() PSD_EXCLUDES(mutex_);

 private:
  using Tensors = CollectiveGroup::Tensors;

  DeviceOffer OfferFor(const Wanted& wanted) PSD_EXCLUDES(mutex_);
  // Connects the devices of all ranks. Returns null if a rank could not.
  absl::StatusOr<Communicator> Connect(const Wanted& wanted, const std::string& gpus)
      PSD_EXCLUDES(mutex_);
  absl::StatusOr<Communicator> Open(const Wanted& wanted, const std::string& id)
      PSD_EXCLUDES(mutex_);
  // Returns the results of a call of the group that moves texts, one for each tensor.
  absl::StatusOr<Tensors> Exchange(Operation operation, const Wanted& wanted,
                                   const std::string& mine, int root = 0);
  // Logs once that calls go through the host.
  void Explain(const std::string& why) PSD_EXCLUDES(mutex_);

  CollectiveGroup& group_;
  Logger& logger_;

  Mutex mutex_;  // leaf
  bool ended_ PSD_GUARDED_BY(mutex_) = false;
  // By the identities of the GPUs of all ranks. Null if they could not be connected.
  std::map<std::string, Communicator> communicators_ PSD_GUARDED_BY(mutex_);
  Communicator connecting_ PSD_GUARDED_BY(mutex_);
  std::set<std::string> explained_ PSD_GUARDED_BY(mutex_);
};

}  // namespace psd::services
