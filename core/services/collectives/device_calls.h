#pragma once

// Calls of a group whose tensors may be on devices that communicate directly, for example by NCCL.

#include <cstddef>
#include <deque>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/device.h"
#include "core/base/future.h"
#include "core/base/log.h"
#include "core/base/mutex.h"
#include "core/base/stream.h"
#include "core/services/collectives/collective_call.h"
#include "core/services/collectives/collective_group.h"
#include "core/services/collectives/device_connections.h"
#include "core/tensor/tensor.h"

namespace psd::services {

// Whether the devices could perform the call if all tensors were on devices. Ranks whose calls
// agree get the same answer. Operations in which some ranks give no tensor never can, because these
// ranks have their results on the host; nor can the least and the greatest of floating numbers,
// because NCCL does not promise to keep a NaN. A broadcast can, whatever its size, because a rank
// that takes any tensor does not know it.
// Requires: the rank has a correct call, see CheckCall and CallData::CheckInputs.
bool DevicesMayPerform(const CollectiveCall& call);

// Makes a call of `group` through memory of the host. As CollectiveGroup::Start, but the root of a
// broadcast gets back its own tensor.
Future<CollectiveGroup::Tensors> StartOnHost(CollectiveGroup& group, CollectiveCall call,
                                             CollectiveGroup::Tensors inputs,
                                             absl::Duration timeout,
                                             std::shared_ptr<Device> device);

// Makes all calls of one rank of a group in which every rank has a device with DeviceCollectives.
//
// Before each call that DevicesMayPerform, the ranks agree on its way (DeviceConnections).
//
// The group decides who is dead and who is late. When this rank's part ends, so do the connections,
// so that nothing waits for a rank that is gone.
//
// Calls that DevicesMayPerform, and calls behind them, are made one after the other on the worker's
// executor, so that all ranks make the calls of the group in the same order. Results of several
// calls may be under way. Thread-safe.
class DeviceCalls : public std::enable_shared_from_this<DeviceCalls> {
 public:
  using Tensors = CollectiveGroup::Tensors;

  // Requires: `logger` exists until the group is closed.
  static std::shared_ptr<DeviceCalls> Create(std::shared_ptr<CollectiveGroup> group,
                                             Logger& logger);

  // Makes the group's next call; see CollectiveGroup::Start. `device` is that of this rank's
  // tensor, also of one that only says what is expected.
  Future<Tensors> Start(CollectiveCall call, Tensors inputs, absl::Duration timeout,
                        std::shared_ptr<Device> device) PSD_EXCLUDES(mutex_);

  // As CollectiveGroup::Leave, once all calls are over. If some are not within `limit`, the group
  // fails, because the other ranks need this one for them.
  void Leave(absl::Duration limit) PSD_EXCLUDES(mutex_);

 private:
  struct Pending {
    CollectiveCall call;
    Tensors inputs;
    std::shared_ptr<Device> device;  // null for the host; shared with the worker
    std::shared_ptr<Event> ready;    // behind the work that computes the inputs; null for the host
    absl::Time until;
    Promise<Tensors> result;
  };
  struct Flight;
  using Communicator = DeviceConnections::Communicator;

  DeviceCalls(std::shared_ptr<CollectiveGroup> group, Logger& logger)
      : group_(std::move(group)), connections_(*group_, logger) {}

  // Makes the calls of the queue.
  void Drain() PSD_EXCLUDES(mutex_);
  // Fails the group if a call is still in the queue at its deadline, because an earlier call or
  // other work of the executor takes long.
  void Expire() PSD_EXCLUDES(mutex_);
  void Make(Pending pending) PSD_EXCLUDES(mutex_);
  // `agreed`: the ranks have agreed on this way, so an error here fails the group.
  void MakeOnHost(Pending pending, bool agreed);
  // Lets the devices perform the call. An error means that this rank cannot go on with the group.
  absl::Status Launch(Pending& pending, const Communicator& communicator) PSD_EXCLUDES(mutex_);
  // Looks after a call that is under way: once a second, at its deadline, and once more.
  void Look(const std::weak_ptr<Flight>& flight);
  void Landed(const Flight& flight, const absl::Status& status) PSD_EXCLUDES(mutex_);
  // Fails the group, and then the call.
  void FailWith(const absl::Status& why, const Promise<Tensors>& result);
  // This rank's part in the group has ended.
  void End() PSD_EXCLUDES(mutex_);

  const std::shared_ptr<CollectiveGroup> group_;  // shared with its service
  DeviceConnections connections_;

  Mutex mutex_;  // leaf
  std::deque<Pending> queue_ PSD_GUARDED_BY(mutex_);
  bool draining_ PSD_GUARDED_BY(mutex_) = false;
  size_t flights_ PSD_GUARDED_BY(mutex_) = 0;  // calls that the devices perform
  bool ended_ PSD_GUARDED_BY(mutex_) = false;
  CondVar over_;  // no call is left, or this rank's part has ended
};

}  // namespace psd::services
