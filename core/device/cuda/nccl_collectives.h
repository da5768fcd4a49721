#pragma once

// Collective operations of a CUDA device, by NCCL.

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/device_collectives.h"
#include "core/base/mutex.h"
#include "core/device/cuda/cuda_context.h"

namespace psd {
class CudaDevice;  // core/device/cuda/cuda_device.h
class CudaStream;  // core/device/cuda/cuda_stream.h
}  // namespace psd

namespace psd::cuda {

struct Nccl;  // core/device/cuda/nccl.h

// Returns the collective operations of `device`, which owns them; null if psd was built without the
// header of NCCL. `file` is that of NCCL; see LoadNccl.
std::unique_ptr<DeviceCollectives> NewNcclCollectives(CudaDevice& device, std::string file);

// The communicators of one device. NCCL is loaded when it is first asked for; if that fails, it is
// tried again the next time. Communicators work without blocking the host (ncclConfig_t::blocking
// is 0). Each has a stream of its own, which another one gets when it has ended. Thread-safe.
class NcclCollectives : public DeviceCollectives {
 public:
  // As NewNcclCollectives.
  NcclCollectives(CudaDevice& device, std::string file);
  ~NcclCollectives() override;

  absl::StatusOr<std::string> Library() override;
  // The UUID of the GPU.
  absl::StatusOr<std::string> Identity() override;
  absl::StatusOr<std::string> NewId() override;
  // The communicator keeps the device alive.
  absl::StatusOr<std::shared_ptr<DeviceCommunicator>> Connect(const std::string& id, int rank,
                                                              int ranks) override;

 private:
  class Communicator;

  absl::StatusOr<std::shared_ptr<const Nccl>> Load() PSD_EXCLUDES(mutex_);
  absl::StatusOr<CudaStream*> TakeStream() PSD_EXCLUDES(mutex_);
  void GiveStream(CudaStream* stream) PSD_EXCLUDES(mutex_);

  CudaDevice& device_;
  const std::string file_;

  Mutex mutex_;                                              // leaf
  std::shared_ptr<const Nccl> nccl_ PSD_GUARDED_BY(mutex_);  // shared with communicators
  std::vector<CudaStream*> spare_streams_ PSD_GUARDED_BY(mutex_);
};

}  // namespace psd::cuda
