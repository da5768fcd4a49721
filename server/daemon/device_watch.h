#pragma once

// Finds out that devices are lost.

#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/base/device.h"
#include "core/base/timer.h"

namespace psd::server {

// Looks at the devices of a daemon once in a while, because devices tell nobody that they are lost.
// It does not wait for them. A lost device stays lost, so each one is reported once. Owned by the
// server. Confined to one thread until Start, and to the thread of the timers afterwards.
class DeviceWatch {
 public:
  // The time from one look to the next.
  static constexpr absl::Duration kPeriod = absl::Seconds(1);

  // Called with a device that is lost, and the error that says why.
  using OnLost = std::function<void(const Device&, const absl::Status&)>;

  DeviceWatch(std::vector<std::shared_ptr<Device>> devices, TimerQueue& timers, OnLost on_lost);
  DeviceWatch(const DeviceWatch&) = delete;
  DeviceWatch& operator=(const DeviceWatch&) = delete;

  // Called once. `timers` must be stopped before this object is destroyed.
  void Start() { LookLater(); }

 private:
  void Look();
  void LookLater();

  std::vector<std::shared_ptr<Device>> working_;  // shared with the runtime; not known to be lost
  TimerQueue& timers_;
  const OnLost on_lost_;
};

}  // namespace psd::server
