#pragma once

// The memory of an emulated device.

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/unique_fd.h"

namespace psd::emulated {

// One memory file that is mapped twice. The addresses of the first mapping are handed out; nobody
// may ever access it. The second mapping is for operations, and only the pages of open blocks are
// accessible there. A block ends at the end of a page, up to kBlockAlignment - 1 bytes, and the
// page behind it stays closed; a block begins behind the closed page of another one. So every
// access beyond the end of a block, to a block that is freed or not yet allocated in stream order,
// and by the host ends the process, with a line that names the device and the operation.
// Thread-safe, if no two threads open or close the same block.
//
// The file may be shared: the arena of a peer maps the file of another process's arena. There the
// pages of blocks can be opened for reading only.
class DeviceArena {
 public:
  // Maps room for blocks that need at most `bytes` bytes by BytesOf. Only pages in use take memory.
  // Errors: RESOURCE_EXHAUSTED if the system has no room; or if kMostArenas exist in the process.
  static absl::StatusOr<std::unique_ptr<DeviceArena>> Create(std::string device, size_t bytes);
  // Maps the file of another process's arena for `device`.
  // Errors: INVALID_ARGUMENT if it is no such file (CheckArenaFile); those of Create.
  static absl::StatusOr<std::unique_ptr<DeviceArena>> OfPeer(std::string device, UniqueFd file);
  ~DeviceArena();
  DeviceArena(const DeviceArena&) = delete;
  DeviceArena& operator=(const DeviceArena&) = delete;

  // The bytes of the arena that a block of `size` bytes takes.
  static size_t BytesOf(size_t size);
  // The address, as handed out, of a block of `size` bytes whose part of the arena begins at
  // `offset`.
  std::byte* AddressOf(size_t offset, size_t size) const;

  // Returns a descriptor with which another process can map the file. Errors: RESOURCE_EXHAUSTED.
  // Requires: this is no arena of a peer.
  absl::StatusOr<UniqueFd> Descriptor() const;
  // Where the address, as handed out, is in the file, and the other way round.
  size_t PlaceOf(const std::byte* address) const;
  std::byte* AtPlace(size_t place) const { return outside_ + place; }
  // Whether a block of `size` bytes can begin at `place`.
  bool CanHaveBlock(size_t place, size_t size) const;

  // Whether the bytes lie within the mapping that is handed out.
  bool Contains(const void* address, size_t bytes) const;
  // Returns the address for operations. Requires: Contains(address, 0).
  std::byte* Inside(const void* address) const;

  // Makes the block at `address` accessible to operations. Its bytes are 0xff, which is NaN in
  // every type of float. Ends the process if the system refuses.
  void Open(const std::byte* address, size_t size);
  // Tells ThreadSanitizer that the stream of this thread has stopped using the block. Whoever opens
  // a block in the same memory later has waited for that.
  void Leave(const std::byte* address, size_t size) const;
  // Checks the red zones of the block, and takes the access away. Every stream has left the block.
  void Close(const std::byte* address, size_t size);
  // Makes the block, which another process has opened, accessible for reading, and takes the access
  // away. Errors: RESOURCE_EXHAUSTED if the system refuses. Requires: this is the arena of a peer.
  absl::Status OpenForReading(const std::byte* address, size_t size);
  void CloseForReading(const std::byte* address, size_t size);
  // Ends the process with a line that names the device, the block's size and `found`, if the bytes
  // before or behind the block, up to the ends of its pages, were written.
  void CheckRedZones(const std::byte* address, size_t size, const char* found) const;

  // If `address` is in one of the arenas of the process, writes a line about the access by this
  // thread to the standard error. For the handler of SIGSEGV.
  static void Explain(const void* address);

  static constexpr size_t kMostArenas = 256;

 private:
  // `bytes` is the size of the file.
  DeviceArena(std::string device, size_t bytes, bool of_peer);
  // Maps the file, and makes the arena known to the handler of SIGSEGV.
  absl::Status Start(const UniqueFd& file);
  absl::Status Map(const UniqueFd& file);
  absl::Status Register();
  void ExplainInside(const void* address) const;

  const std::string device_;
  const size_t bytes_;
  const bool of_peer_;
  UniqueFd file_;  // none in the arena of a peer
  std::byte* outside_ = nullptr;
  std::byte* inside_ = nullptr;
  size_t slot_ = kMostArenas;  // in the list of arenas; kMostArenas: in none
};

// The operation that runs on this thread: "axpy on stream 1 of emu:0". Null if there is none.
const char* CurrentOperation();

// While it exists, its thread runs the operation `name`.
class RunningOperation {
 public:
  explicit RunningOperation(const std::string& name);
  ~RunningOperation();
  RunningOperation(const RunningOperation&) = delete;
  RunningOperation& operator=(const RunningOperation&) = delete;
};

}  // namespace psd::emulated
