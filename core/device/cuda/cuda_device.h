#pragma once

// GPUs of NVIDIA, through CUDA's runtime. Only builds with --config=cuda have them.

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/buffer.h"
#include "core/base/completion_threads.h"
#include "core/base/device.h"
#include "core/base/device_collectives.h"
#include "core/base/kernel_table.h"
#include "core/base/memory_place.h"
#include "core/base/mutex.h"
#include "core/device/cuda/cuda_context.h"
#include "core/device/cuda/cuda_sharing.h"
#include "core/device/cuda/cuda_stream.h"
#include "core/device/cuda/device_memory.h"
#include "core/device/cuda/matrix_products.h"
#include "core/device/cuda/pinned_arena.h"

namespace psd {

struct CudaDeviceOptions {
  // CUDA's number of the GPU, among those that CUDA_VISIBLE_DEVICES lets the process see. The
  // device is called "cuda:" and this number.
  int index = 0;
  // The most bytes that all blocks of the device may have together; see DeviceMemory for how a
  // block counts. The device takes them from the GPU when it is opened. 0 means nine tenths of what
  // is free then.
  size_t budget_bytes = 0;
  // Pinned memory of the host for copies, taken when the device is opened. Too little of it makes
  // the copies of gradients wait (decision 0027); too much leaves the system short of memory. 0
  // means a sixteenth of the budget, and at most kMostPinnedBytes.
  size_t pinned_bytes = 0;
  // The file of cublasLt. Empty means that it is looked for; see cuda::LoadCublasLt.
  std::string cublas_lt = {};
  // The file of NCCL. Empty means that it is looked for; see cuda::LoadNccl.
  std::string nccl = {};
  // The kernels of core/device_kernels/cuda.
  KernelTable kernels = {};
  // Whether other processes may import the memory (core/device/cuda/cuda_sharing.h). See
  // DeviceMemory for what this costs.
  bool shareable = false;
  // Whether matrix products may round factors of f32 to TF32: many times as fast on tensor cores,
  // and exact to 10 bits behind the point instead of 23. Equal products still have equal bits.
  bool allow_tf32 = false;
};

// The most pinned memory of a device for which no size is given.
inline constexpr size_t kMostPinnedBytes = size_t{256} << 20;

// Returns the device. All that it needs of the process and the GPU is taken now, but for cublasLt,
// which the first matrix product loads, and NCCL, which the first group loads.
// Errors: FAILED_PRECONDITION, one sentence that says what is missing and what to do, without a
// driver, with one that is too old, and for a GPU that does not exist, is too old, or cannot be
// used, for example because another process holds it exclusively, or cannot be shared and is asked
// to be; RESOURCE_EXHAUSTED naming the
// budget and what is free, if the GPU or the system refuses memory or a thread.
absl::StatusOr<std::shared_ptr<Device>> OpenCudaDevice(const CudaDeviceOptions& options);

// A GPU. When CUDA reports an error after which only a new process can use the GPU, such as an
// illegal access, the device is lost; so it is when a kernel cannot be added. Other devices of the
// process go on. Calls on a thread make the GPU the current one of that thread, as cudaSetDevice
// does. Thread-safe.
class CudaDevice : public Device, public std::enable_shared_from_this<CudaDevice> {
 public:
  // As OpenCudaDevice.
  static absl::StatusOr<std::shared_ptr<CudaDevice>> Open(const CudaDeviceOptions& options);
  // Waits until all work is done and all completions have been called.
  ~CudaDevice() override;

  CudaStream& default_stream() override { return *default_stream_; }
  absl::StatusOr<Stream*> AddStream() override;
  Allocator& memory() override;
  Allocator& pinned_memory() override { return *pinned_; }
  size_t budget_bytes() const override { return device_memory_->budget_bytes(); }
  size_t used_bytes() const override { return device_memory_->used_bytes(); }
  absl::Status CopyIn(std::byte* to, const std::byte* from, size_t bytes) override;
  absl::Status CopyOut(std::byte* to, const std::byte* from, size_t bytes) override;
  absl::Status CopyWithin(std::byte* to, const std::byte* from, size_t bytes) override;
  DeviceCollectives* collectives() override { return collectives_.get(); }
  CudaSharing* sharing() override { return sharing_.get(); }
  absl::Status Synchronize() override;
  absl::Status health() const override { return context_->health(); }
  void Lose(absl::string_view reason) override { context_->Lose(reason).IgnoreError(); }

  cuda::CudaContext& context() const { return *context_; }
  cuda::MatrixProducts& matrix_products() { return matrix_products_; }

 private:
  friend class CudaSharing;
  friend class CudaStream;
  class DefaultMemory;
  class DeviceBlock;

  CudaDevice(const CudaDeviceOptions& options, std::shared_ptr<cuda::CudaContext> context);
  // Takes what the device needs.
  absl::Status Start(const CudaDeviceOptions& options);
  absl::StatusOr<CudaStream*> NewStream();
  // The stream for work of this thread.
  CudaStream& Here();
  absl::StatusOr<std::shared_ptr<Block>> Allocate(CudaStream& stream, size_t bytes);
  // The place of all blocks of the device.
  const MemoryPlace& place() const;
  // Calls `then` once behind all work that the streams have now, on the thread for completions.
  // Requires: at least one stream.
  void CallBehind(const std::vector<CudaStream*>& streams, CompletionThreads::Then then);
  cuda::DeviceMemory& device_memory() const { return *device_memory_; }
  const cuda::PinnedArena& pinned() const { return *pinned_; }
  const std::shared_ptr<CompletionThreads>& completions() const { return completions_; }

  const std::shared_ptr<cuda::CudaContext> context_;  // shared by the device's parts and events
  const std::unique_ptr<DefaultMemory> memory_;
  cuda::MatrixProducts matrix_products_;
  const std::unique_ptr<DeviceCollectives> collectives_;  // null without NCCL's header
  // Set by Start.
  std::unique_ptr<cuda::PinnedArena> pinned_;
  std::unique_ptr<cuda::DeviceMemory> device_memory_;
  std::unique_ptr<CudaSharing> sharing_;
  std::shared_ptr<CompletionThreads> completions_;  // shared with the events
  CudaStream* default_stream_ = nullptr;

  Mutex mutex_;                                     // leaf
  size_t stream_count_ PSD_GUARDED_BY(mutex_) = 0;  // with those that are being made
  std::vector<std::unique_ptr<CudaStream>> streams_ PSD_GUARDED_BY(mutex_);
};

}  // namespace psd
