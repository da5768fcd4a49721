#include "bench/gpu/devices.h"

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "server/daemon/devices.h"

namespace psd::bench {

absl::Status GpuDevices::Provide(size_t count, Environment& environment) {
  if (count == 0) return absl::OkStatus();
  if (configured_.size() < count) {
    return absl::FailedPreconditionError(
        absl::StrCat("it needs ", count, " devices, and --devices names ", configured_.size()));
  }
  if (!opened_) {
    opened_ = true;
    auto devices = server::OpenDevices(configured_);
    status_ = devices.status();
    if (devices.ok()) devices_ = *std::move(devices);
  }
  PSD_RETURN_IF_ERROR(status_);
  environment.devices = devices_;
  return absl::OkStatus();
}

}  // namespace psd::bench
