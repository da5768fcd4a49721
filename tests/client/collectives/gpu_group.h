#pragma once

// Groups whose ranks have GPUs: trainer r computes on cuda:r.

#include <atomic>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/collectives/group.h"
#include "client/psd.h"
#include "client/runtime_of.h"
#include "core/base/device.h"
#include "core/base/log.h"
#include "core/base/status.h"
#include "core/device/cuda/cuda_device.h"
#include "core/runtime/runtime.h"
#include "core/tensor/copy_to.h"
#include "gtest/gtest.h"
#include "tests/client/collectives/group_world.h"
#include "tests/client/test_world.h"

namespace psd {

// The GPUs of a machine for the ranks of a group, or why there are fewer than two. fake_gpus.cc and
// real_gpus.cc have one definition each, also of HeldGpu.
struct Gpus {
  std::vector<CudaDeviceOptions> options;  // of each rank's
  std::string missing;
};
Gpus FindGpus();

// Work that is added to the default stream of a GPU after the constructor waits until Release, or
// until the destructor, which calls it.
class HeldGpu {
 public:
  // `index` is CUDA's number of the GPU.
  HeldGpu(CudaDevice& device, int index);
  ~HeldGpu() { Release(); }
  HeldGpu(const HeldGpu&) = delete;
  HeldGpu& operator=(const HeldGpu&) = delete;

  // Waits until all work of the GPU is done.
  void Release();

 private:
  CudaDevice& device_;
  std::atomic<bool> released_{false};
};

class GpuGroupTest : public ::testing::Test {
 protected:
  ~GpuGroupTest() override { End(); }

  // Starts a worker for each of the GPUs, and joins them.
  void Open(const std::vector<CudaDeviceOptions>& gpus) {
    for (const CudaDeviceOptions& options : gpus)
      devices_.push_back(CudaDevice::Open(options).value());
    world_ = std::make_unique<GroupWorld>(
        ranks(), /*shared_memory=*/true, /*memory_budget_bytes=*/0,
        std::vector<std::shared_ptr<Device>>(devices_.begin(), devices_.end()),
        NewStreamLogger(log_, LogLevel::kWarning));
    groups_ = world_->JoinAll("ranks");
  }
  int ranks() const { return static_cast<int>(devices_.size()); }

  // Runs f on all ranks at the same time.
  std::vector<absl::Status> OnAll(const std::function<absl::Status(int, Group&)>& f) {
    std::vector<absl::Status> statuses(devices_.size());
    InParallel(ranks(), [&](int rank) { statuses[rank] = f(rank, *groups_[rank]); });
    return statuses;
  }
  Tensor There(int rank, const Tensor& tensor) {
    return Must(CopyTo(devices_[rank].get(), tensor));
  }
  // Memory on the rank's GPU with anything in it.
  Tensor RoomOn(int rank, int64_t elements) {
    return Must(Tensor::Empty({elements}, DType::kF32, &devices_[rank]->memory()));
  }
  void Kill(int rank) { RuntimeOf(*world_->workers[rank]).agent().Shutdown(absl::ZeroDuration()); }
  // Ends all workers, so that nobody writes to the log any more.
  std::string Log() {
    End();
    return log_.str();
  }

  static std::string Text(const absl::Status& status) { return std::string(status.message()); }
  // The worker that is to blame, or "".
  static std::string Culprit(const absl::Status& status) {
    const auto detail = GetDetail(status);
    return detail.has_value() ? detail->worker : "";
  }

  std::ostringstream log_;
  std::vector<std::shared_ptr<CudaDevice>> devices_;
  std::unique_ptr<GroupWorld> world_;
  std::vector<std::shared_ptr<Group>> groups_;

 private:
  void End() {
    groups_.clear();
    world_.reset();
  }
};

}  // namespace psd
