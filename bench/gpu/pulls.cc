// gpu_pull_256MiB: a trainer pulls a parameter from the device of an owner to its host memory. Both
// are workers of this process, and the bytes travel over a real connection, or through shared
// memory. Floor: as many bytes copied from the device to pinned memory of the host.

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "bench/gpu/cases.h"
#include "bench/gpu/device_job.h"
#include "bench/gpu/on_device.h"
#include "bench/job.h"
#include "core/base/buffer.h"
#include "core/base/status.h"
#include "core/base/stream.h"

namespace psd::bench {
namespace {

constexpr size_t kFullBytes = size_t{256} << 20;
constexpr size_t kTinyBytes = size_t{3} << 20;  // is pulled in pieces too

class Pull : public Workload {
 public:
  absl::Status Start(const Environment& environment) override {
    device_ = environment.devices[0];
    bytes_ = SizeOn(*device_, kFullBytes, kTinyBytes);
    PSD_ASSIGN_OR_RETURN(owner_, StartOnDevices(environment, kOwner));
    PSD_ASSIGN_OR_RETURN(trainer_,
                         StartOnDevices(environment, "bench", {{kOwner, owner_->address()}}));
    const auto elements = static_cast<int64_t>(bytes_ / sizeof(float));
    PSD_ASSIGN_OR_RETURN(RRef value,
                         CreateOn(*trainer_, kOwner, "pulled", Zeros({elements}), device_->name()));
    PSD_ASSIGN_OR_RETURN(const Tensor pattern, Pattern(nullptr, {elements}));
    PSD_RETURN_IF_ERROR(trainer_->Assign(value, pattern).status());
    values_.push_back(std::move(value));
    PSD_ASSIGN_OR_RETURN(from_, device_->memory().Allocate(bytes_));
    PSD_ASSIGN_OR_RETURN(pinned_, device_->pinned_memory().Allocate(
                                      SizeOn(*device_, kFullBytes / 8, kTinyBytes / 3)));
    return Check(pattern);
  }

  absl::StatusOr<std::vector<double>> RunPsd() override {
    return TimeEach(Pulls(), [this] { return PullOnce().status(); });
  }
  absl::StatusOr<std::optional<double>> RunFloor() override {
    PSD_ASSIGN_OR_RETURN(const double seconds,
                         TimeOnDevice(*device_, Pulls(), [this] { return AddCopies(); }));
    return seconds;
  }

 private:
  int Pulls() const { return SizeOn(*device_, 5, 2); }

  absl::StatusOr<Tensor> PullOnce() {
    PSD_ASSIGN_OR_RETURN(const std::vector<Variable> pulled, FetchTo(*trainer_, values_, "cpu"));
    return pulled[0].tensor();
  }
  absl::Status Check(const Tensor& pattern) {
    PSD_ASSIGN_OR_RETURN(const Tensor pulled, PullOnce());
    const auto count = static_cast<size_t>(pattern.NumElements());
    return CheckNear("the pulled parameter", {pulled.data<float>(), bytes_ / sizeof(float)},
                     {pattern.data<float>(), count});
  }
  // Fills the pinned memory again and again.
  absl::Status AddCopies() {
    for (size_t at = 0; at < bytes_; at += pinned_->size()) {
      PSD_RETURN_IF_ERROR(device_->default_stream().CopyOut(
          pinned_->data(), from_->data() + at, std::min(pinned_->size(), bytes_ - at)));
    }
    return absl::OkStatus();
  }

  std::shared_ptr<Device> device_;
  size_t bytes_ = 0;
  std::unique_ptr<Worker> owner_;
  std::unique_ptr<Worker> trainer_;
  std::vector<RRef> values_;
  std::shared_ptr<Block> from_, pinned_;
};

}  // namespace

std::vector<Case> GpuPullCases() {
  Case one;
  one.name = "gpu_pull_256MiB";
  one.has_peer = false;
  one.devices = 1;
  one.unit = {"GB/s", static_cast<double>(kFullBytes) / 1e9, /*rate=*/true};
  one.make = [] { return std::make_unique<Pull>(); };
  return {one};
}

}  // namespace psd::bench
