#include "bench/gpu/device_case.h"

#include <utility>

#include "core/base/status.h"

namespace psd::bench {

Case DeviceCase(const std::string& name, std::function<std::unique_ptr<Workload>()> make) {
  Case one;
  one.name = name;
  one.sends = false;
  one.unit = {"ms", 1e3};
  one.has_peer = false;
  one.devices = 1;
  one.make = std::move(make);
  return one;
}

absl::Status CopyBoundWorkload::Start(const Environment& environment) {
  device_ = environment.devices[0];
  PSD_RETURN_IF_ERROR(Prepare());
  PSD_ASSIGN_OR_RETURN(floor_, CopyFloor::Create(*device_, TrafficBytes()));
  for (int i = 0; i < OperationsToCheck(); ++i) PSD_RETURN_IF_ERROR(Add());
  return Check();
}

absl::StatusOr<std::vector<double>> CopyBoundWorkload::RunPsd() {
  PSD_ASSIGN_OR_RETURN(const double seconds,
                       TimeOnDevice(*device_, Operations(), [this] { return Add(); }));
  return std::vector<double>{seconds};
}

absl::StatusOr<std::optional<double>> CopyBoundWorkload::RunFloor() {
  PSD_ASSIGN_OR_RETURN(const double seconds,
                       TimeOnDevice(*device_, Operations(), [this] { return floor_->Add(); }));
  return seconds;
}

}  // namespace psd::bench
