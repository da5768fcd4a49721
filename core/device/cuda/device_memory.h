#pragma once

// The memory of a CUDA device: what its streams allocate, within a budget.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/buffer.h"
#include "core/base/mutex.h"
#include "core/base/unique_fd.h"
#include "core/device/cuda/cuda_context.h"

struct CUmemPoolHandle_st;  // *cudaMemPool_t

namespace psd {
class CudaStream;  // core/device/cuda/cuda_stream.h
}

namespace psd::cuda {

// A pool of CUDA (Stream Ordered Memory Allocator) that belongs to psd alone. It takes the budget
// from the GPU when it is made and keeps it, so no other program can take memory that the budget
// promises; only memory in pieces too small for an allocation goes back to the GPU, to be had in
// one piece. The budget counts in the host's order, from Allocate to Free; the pool reuses memory
// in stream order. A block counts with its size rounded up to 512 bytes, which is what the pool
// takes for it. Thread-safe.
class DeviceMemory {
 public:
  // With `budget_bytes` 0, the budget is nine tenths of what is free on the GPU. It is rounded down
  // to 512 bytes. Other processes can import a pool that is `shareable`. CUDA never gives memory of
  // such a pool back to the GPU, not even to join pieces of it.
  // Errors: RESOURCE_EXHAUSTED naming the budget and what is free.
  static absl::StatusOr<std::unique_ptr<DeviceMemory>> Create(std::shared_ptr<CudaContext> context,
                                                              size_t budget_bytes, bool shareable);
  // Requires: all blocks have been freed and their streams have done all work.
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  // Returns memory that work of `stream` may use from now on. If the GPU has none in spite of the
  // budget, because what was freed is still in use, waits for it.
  // Errors: RESOURCE_EXHAUSTED naming the need, the budget and the use; UNAVAILABLE if the device
  // is lost.
  absl::StatusOr<std::byte*> Allocate(CudaStream& stream, size_t bytes);
  // Frees the memory behind all work that the streams which use it have now. They do not wait.
  void Free(const std::byte* address);

  // As Stream::AlsoUses and Stream::WaitForUsers.
  absl::Status AlsoUses(CudaStream& stream, const Block& block);
  absl::Status WaitForUsers(CudaStream& stream, const Block& block);

  // As Allocate and Free, but for work of `stream` alone and outside the budget: for what a kernel
  // needs besides its operands, since kernels cannot fail when there is no room.
  absl::StatusOr<std::byte*> AllocateScratch(CudaStream& stream, size_t bytes);
  absl::Status FreeScratch(CudaStream& stream, std::byte* address);

  // Returns the descriptor of the pool, for other processes. Requires: it is shareable.
  absl::StatusOr<UniqueFd> ExportPool();
  // Notes that there is one block more at `address`, of memory of another process, and that `home`
  // uses it. The budget does not count it.
  void KeepImported(CudaStream& home, const std::byte* address, size_t bytes);
  // Takes that back, and returns the streams that use the block.
  std::vector<CudaStream*> DropImported(const std::byte* address);
  bool IsImported(const Block& block) const;

  // Whether the bytes lie in one block that lives.
  bool Contains(const std::byte* address, size_t bytes) const;

  size_t budget_bytes() const { return budget_bytes_; }
  size_t used_bytes() const;

 private:
  struct User {
    CudaStream* stream = nullptr;
    uint64_t declared = 0;  // larger when it has declared its use again
  };
  struct Living {
    size_t size = 0;
    std::vector<User> users;  // the first one has allocated or imported the block
    // How many blocks have these bytes of another process. 0 for memory of this device.
    size_t imports = 0;
  };

  DeviceMemory(std::shared_ptr<CudaContext> context, CUmemPoolHandle_st* pool, CUstream_st* freeing,
               size_t budget_bytes)
      : context_(std::move(context)), pool_(pool), freeing_(freeing), budget_bytes_(budget_bytes) {}
  absl::Status Reserve();
  absl::StatusOr<std::byte*> Take(CudaStream& stream, size_t bytes);
  // Adds the free of a block with several users to `freeing_`, behind all of them.
  absl::Status FreeBehind(std::byte* address, const std::vector<User>& users);
  // Returns what is known of the block; null if it is none of this device.
  Living* Find(const Block& block) PSD_REQUIRES(mutex_);
  void Declare(CudaStream& stream, Living& block) PSD_REQUIRES(mutex_);

  const std::shared_ptr<CudaContext> context_;  // shared by the device's parts and events
  CUmemPoolHandle_st* const pool_;
  // Frees blocks of several streams, so that none of these waits for the others.
  CUstream_st* const freeing_;
  const size_t budget_bytes_;

  mutable Mutex mutex_;  // leaf
  size_t used_bytes_ PSD_GUARDED_BY(mutex_) = 0;
  uint64_t declarations_ PSD_GUARDED_BY(mutex_) = 0;
  std::map<const std::byte*, Living> living_ PSD_GUARDED_BY(mutex_);  // in the order of the host
};

}  // namespace psd::cuda
