#pragma once

// The common part of cases that use one device and send nothing.

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bench/gpu/on_device.h"
#include "bench/workload.h"
#include "core/base/device.h"

namespace psd::bench {

// Returns a case on one device, in milliseconds, that sends nothing and that the peer lacks.
Case DeviceCase(const std::string& name, std::function<std::unique_ptr<Workload>()> make);

// Operations that are added to the default stream of a device one after the other. Their floor is a
// copy within the device. Confined to one thread.
class CopyBoundWorkload : public Workload {
 public:
  absl::Status Start(const Environment& environment) final;
  absl::StatusOr<std::vector<double>> RunPsd() final;
  absl::StatusOr<std::optional<double>> RunFloor() final;

 protected:
  // Makes everything that operations need.
  virtual absl::Status Prepare() = 0;
  // Returns the bytes that an operation reads and writes. Called after Prepare.
  virtual size_t TrafficBytes() const = 0;
  virtual absl::Status Add() = 0;  // adds the work of one operation
  // Compares the results of the first OperationsToCheck() operations with those of the CPU.
  virtual absl::Status Check() const = 0;
  virtual int OperationsToCheck() const { return 1; }

  Device& device() const { return *device_; }

 private:
  int Operations() const { return SizeOn(*device_, 50, 2); }  // of a block

  std::shared_ptr<Device> device_;
  std::optional<CopyFloor> floor_;
};

}  // namespace psd::bench
