#pragma once

// The streams of a CUDA device. Kernels are launched through them.

#include <cstddef>
#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/base/buffer.h"
#include "core/base/stream.h"
#include "core/device/cuda/cuda_context.h"

namespace psd {

class CudaDevice;

// A stream of a CudaDevice, which makes and owns it. It has no order with CUDA's own default
// stream. Thread-safe.
class CudaStream : public Stream {
 public:
  // Takes over `handle`, which the destructor destroys.
  CudaStream(CudaDevice& device, CUstream_st* handle, std::string name);
  // Requires: all work has been done, or the device is lost.
  ~CudaStream() override;

  Device& device() const override;
  absl::StatusOr<std::shared_ptr<Event>> Record() override;
  absl::Status WaitFor(const std::shared_ptr<Event>& event) override;
  absl::StatusOr<std::shared_ptr<Block>> Allocate(size_t bytes) override;
  absl::Status AlsoUses(const Block& block) override;
  absl::Status WaitForUsers(const Block& block) override;
  absl::Status CopyIn(std::byte* to, const std::byte* pinned, size_t bytes) override;
  absl::Status CopyOut(std::byte* pinned, const std::byte* from, size_t bytes) override;
  // Copies between two GPUs go directly where they can reach each other, and otherwise through
  // memory of the driver.
  absl::Status CopyFrom(std::byte* to, Device& from_device, const std::byte* from,
                        size_t bytes) override;

  CUstream_st* handle() const { return handle_; }

  // Calls launch(handle), which adds work called `operation` and returns 0 or a cudaError_t. The
  // device is the current one of the thread then. Errors: UNAVAILABLE if the device is lost;
  // otherwise nothing was added, and the error is that of StatusOf (cuda_errors.h).
  absl::Status Add(absl::string_view operation, absl::FunctionRef<int(CUstream_st*)> launch);
  // As Add, for work that reads a table of `bytes` bytes, which fill(host_table) writes before it
  // is copied to the device, aligned to kBlockAlignment. launch(table, handle) adds the work. The
  // table is outside of the device's budget. If the GPU has no memory for it, the work reads the
  // table in the host's pinned memory, which is slow. Requires: bytes > 0. Errors also:
  // RESOURCE_EXHAUSTED if there is no room in either.
  absl::Status AddWithTable(absl::string_view operation, size_t bytes,
                            absl::FunctionRef<void(void*)> fill,
                            absl::FunctionRef<int(const void*, CUstream_st*)> launch);

  // Makes later work wait for the mark.
  absl::Status WaitForMark(const cuda::Mark& mark);

 private:
  friend class CudaDevice;

  // Copies and waits. The host's bytes may lie in any memory.
  absl::Status CopyInAndWait(std::byte* to, const std::byte* from, size_t bytes);
  absl::Status CopyOutAndWait(std::byte* to, const std::byte* from, size_t bytes);
  // Waits for all work that has been added. Errors: those of Event::Wait.
  absl::Status WaitForAll();
  absl::Status CheckAddress(absl::string_view operation, const std::byte* address,
                            size_t bytes) const;
  absl::Status CheckPinned(absl::string_view operation, const std::byte* address,
                           size_t bytes) const;
  // Copies the table to `to`, and keeps its bytes on the host until that is done.
  absl::Status CopyTable(std::byte* to, size_t bytes, absl::FunctionRef<void(void*)> fill);
  // Keeps the block until all work is done that has been added.
  absl::Status Keep(std::shared_ptr<Block> pinned);
  // Returns the context of the device that `error` concerns, of a call for this stream and for
  // another device. The other one is blamed only if CUDA says that it is lost.
  cuda::CudaContext& BlamedFor(int error, cuda::CudaContext& other);

  CudaDevice& device_;
  CUstream_st* const handle_;
};

}  // namespace psd
