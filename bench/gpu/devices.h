#pragma once

// Opens the devices of the cases that need some.

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "bench/workload.h"
#include "core/base/device.h"
#include "server/daemon/config.h"

namespace psd::bench {

// Opens devices when the first case needs one, because a GPU then lends most of its memory to this
// process. Confined to one thread.
class GpuDevices {
 public:
  explicit GpuDevices(std::vector<server::DeviceConfig> configured)
      : configured_(std::move(configured)) {}

  // Sets environment.devices if a case needs `count` devices, which may be 0.
  // Errors: why the case cannot run here: those of server::OpenDevices, or FAILED_PRECONDITION if
  // there are fewer devices. The environment is as before then.
  absl::Status Provide(size_t count, Environment& environment);

 private:
  const std::vector<server::DeviceConfig> configured_;
  bool opened_ = false;
  absl::Status status_;  // of opening them
  std::vector<std::shared_ptr<Device>> devices_;
};

}  // namespace psd::bench
