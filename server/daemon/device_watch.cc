#include "server/daemon/device_watch.h"

#include <algorithm>
#include <utility>

namespace psd::server {

DeviceWatch::DeviceWatch(std::vector<std::shared_ptr<Device>> devices, TimerQueue& timers,
                         OnLost on_lost)
    : working_(std::move(devices)), timers_(timers), on_lost_(std::move(on_lost)) {}

void DeviceWatch::LookLater() {
  if (!working_.empty()) timers_.RunAfter(kPeriod, [this] { Look(); });
}

void DeviceWatch::Look() {
  const auto lost = [this](const std::shared_ptr<Device>& device) {
    const absl::Status health = device->health();
    if (!health.ok()) on_lost_(*device, health);
    return !health.ok();
  };
  working_.erase(std::remove_if(working_.begin(), working_.end(), lost), working_.end());
  LookLater();
}

}  // namespace psd::server
