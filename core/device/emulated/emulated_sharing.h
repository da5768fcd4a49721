#pragma once

// Memory of emulated devices that processes of one host share.

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/buffer.h"
#include "core/base/device_sharing.h"
#include "core/base/mutex.h"
#include "core/base/unique_fd.h"
#include "core/device/emulated/device_arena.h"
#include "core/device/emulated/quiet_ptr.h"

namespace psd {

class EmulatedDevice;

namespace emulated {

// The arenas of other processes that one device has mapped. Thread-safe.
class PeerArenas {
 public:
  void Add(const DeviceArena& arena);
  void Remove(const DeviceArena& arena);
  // Whether the bytes lie in one of the arenas.
  bool Contains(const void* address, size_t bytes) const;
  // Returns the address for operations. Null if it is in none of the arenas.
  std::byte* Inside(const void* address) const;

 private:
  mutable Mutex mutex_;  // leaf
  std::vector<const DeviceArena*> arenas_ PSD_GUARDED_BY(mutex_);
};

}  // namespace emulated

// Passes on the memory file of the device's arena; a handle is the place of a block in that file,
// and its size. Another device, of this process too, maps the file as it maps its own. A kernel
// that writes to an imported block, or reads behind its end or after its release, ends the process
// with a line that names the operation. An imported block counts as used by the CurrentStream of
// the thread that has imported it, as if it had been allocated there.
class EmulatedSharing : public DeviceSharing {
 public:
  // `device` owns this object. `number` is that of its name.
  EmulatedSharing(EmulatedDevice& device, int number, bool exports);

  const std::string& identity() const override { return identity_; }
  bool exports() const override { return exports_; }
  absl::StatusOr<UniqueFd> Descriptor() override;
  absl::StatusOr<std::string> Export(const Block& block) override;
  absl::StatusOr<std::shared_ptr<PeerDeviceMemory>> Open(UniqueFd descriptor) override;

  // The memory that the device has mapped.
  const emulated::PeerArenas& peers() const { return *peers_; }

 private:
  class Mapped;
  class Memory;
  class ImportedBlock;

  EmulatedDevice& device_;
  const std::string identity_;
  const bool exports_;
  const emulated::QuietPtr<emulated::PeerArenas> peers_;  // shared with the mapped memory
};

}  // namespace psd
