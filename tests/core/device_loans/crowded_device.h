#pragma once

// A device of a process that has no room to open the memory of others.

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/base/device.h"
#include "core/base/device_sharing.h"
#include "core/base/unique_fd.h"

namespace psd::testing {

// Does everything as `device` does, but opens no memory while it is crowded. Thread-safe but for
// MeanwhileOpening.
class CrowdedDevice : public Device {
 public:
  explicit CrowdedDevice(std::shared_ptr<Device> device)
      : Device(device->name(), device->kernels()),
        device_(std::move(device)),
        sharing_(*device_->sharing()) {}

  void SetCrowded(bool crowded) { sharing_.crowded = crowded; }
  // Calls `then` once, while memory is being opened.
  void MeanwhileOpening(std::function<void()> then) { sharing_.meanwhile = std::move(then); }

  Stream& default_stream() override { return device_->default_stream(); }
  absl::StatusOr<Stream*> AddStream() override { return device_->AddStream(); }
  Allocator& memory() override { return device_->memory(); }
  Allocator& pinned_memory() override { return device_->pinned_memory(); }
  size_t budget_bytes() const override { return device_->budget_bytes(); }
  size_t used_bytes() const override { return device_->used_bytes(); }
  absl::Status CopyIn(std::byte* to, const std::byte* from, size_t bytes) override {
    return device_->CopyIn(to, from, bytes);
  }
  absl::Status CopyOut(std::byte* to, const std::byte* from, size_t bytes) override {
    return device_->CopyOut(to, from, bytes);
  }
  absl::Status CopyWithin(std::byte* to, const std::byte* from, size_t bytes) override {
    return device_->CopyWithin(to, from, bytes);
  }
  DeviceSharing* sharing() override { return &sharing_; }
  absl::Status Synchronize() override { return device_->Synchronize(); }
  absl::Status health() const override { return device_->health(); }
  void Lose(absl::string_view reason) override { device_->Lose(reason); }

 private:
  struct Sharing : DeviceSharing {
    explicit Sharing(DeviceSharing& all) : of(all) {}
    const std::string& identity() const override { return of.identity(); }
    bool exports() const override { return of.exports(); }
    absl::StatusOr<UniqueFd> Descriptor() override { return of.Descriptor(); }
    absl::StatusOr<std::string> Export(const Block& block) override { return of.Export(block); }
    absl::StatusOr<std::shared_ptr<PeerDeviceMemory>> Open(UniqueFd descriptor) override {
      if (const std::function<void()> then = std::exchange(meanwhile, nullptr)) then();
      if (crowded) return absl::ResourceExhaustedError("a test leaves no room");
      return of.Open(std::move(descriptor));
    }

    DeviceSharing& of;
    std::atomic<bool> crowded{false};
    std::function<void()> meanwhile;  // null if there is nothing to call
  };

  const std::shared_ptr<Device> device_;
  Sharing sharing_;
};

}  // namespace psd::testing
