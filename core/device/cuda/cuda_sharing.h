#pragma once

// Memory of GPUs that processes of one host share, through pools of CUDA.

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "core/base/buffer.h"
#include "core/base/device_sharing.h"
#include "core/base/mutex.h"
#include "core/base/unique_fd.h"

namespace psd {

class CudaDevice;

// Passes on the pool of the device (DeviceMemory) as a file descriptor, and what CUDA says about a
// block of it as a handle. CUDA wants an importer to free a block before its exporter does, so a
// block is released only when it has been freed here. All processes see the same GPU under the same
// identity, its UUID; a part of a GPU (MIG) has one of its own. An imported block counts as used by
// the CurrentStream of the thread that has imported it, as if it had been allocated there.
// Thread-safe.
class CudaSharing : public DeviceSharing {
 public:
  // `device` owns this object. Asks CUDA for the identity.
  static absl::StatusOr<std::unique_ptr<CudaSharing>> Create(CudaDevice& device, bool exports);

  const std::string& identity() const override { return identity_; }
  bool exports() const override { return exports_; }
  absl::StatusOr<UniqueFd> Descriptor() override;
  absl::StatusOr<std::string> Export(const Block& block) override;
  absl::StatusOr<std::shared_ptr<PeerDeviceMemory>> Open(UniqueFd descriptor) override;

 private:
  class Mapped;
  class Memory;
  class ImportedBlock;

  CudaSharing(CudaDevice& device, std::string identity, bool exports);

  CudaDevice& device_;
  const std::string identity_;
  const bool exports_;
  Mutex mutex_;                               // before: CudaContext
  UniqueFd exported_ PSD_GUARDED_BY(mutex_);  // CUDA makes it once
};

}  // namespace psd
