#pragma once

// Opens the devices that a daemon's configuration names.

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/base/device.h"
#include "server/daemon/config.h"

namespace psd::server {

struct DeviceOptions {
  bool shareable = false;   // other processes can open their memory (core/base/device_sharing.h)
  bool allow_tf32 = false;  // as CudaDeviceOptions::allow_tf32; not for emulated devices
};

// Returns the devices in the order of `configured`. The emulated ones may wait for each other's
// streams. A device reserves its budget now, and keeps it until its last user is gone.
// Errors: UNIMPLEMENTED naming a device that this build of psd cannot have, and what it lacks;
// RESOURCE_EXHAUSTED if the system refuses memory or a thread.
absl::StatusOr<std::vector<std::shared_ptr<Device>>> OpenDevices(
    absl::Span<const DeviceConfig> configured, const DeviceOptions& options = {});

}  // namespace psd::server
