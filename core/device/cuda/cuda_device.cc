#include "core/device/cuda/cuda_device.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "core/base/executor.h"
#include "core/base/memory_place.h"
#include "core/base/status.h"
#include "core/base/stream.h"
#include "core/device/cuda/cuda_support.h"
#include "core/device/cuda/nccl_collectives.h"
#include "core/device/device_errors.h"

namespace psd {

using cuda::CudaContext;
using cuda::DeviceMemory;
using cuda::PinnedArena;

class CudaDevice::DefaultMemory : public Allocator {
 public:
  explicit DefaultMemory(CudaDevice& device) : device_(device), place_(MemoryPlace::On(device)) {}
  absl::StatusOr<std::shared_ptr<Block>> Allocate(size_t bytes) override {
    return CurrentStream(&device_)->Allocate(bytes);
  }
  const MemoryPlace& place() const { return place_; }

 private:
  CudaDevice& device_;
  const MemoryPlace place_;
};

class CudaDevice::DeviceBlock : public Block {
 public:
  DeviceBlock(std::byte* data, size_t size, std::shared_ptr<CudaDevice> device)
      : Block(data, size, device->memory_->place()), device_(std::move(device)) {}
  ~DeviceBlock() override { device_->device_memory_->Free(data()); }

 private:
  const std::shared_ptr<CudaDevice> device_;  // kept alive by its blocks
};

absl::StatusOr<std::shared_ptr<Device>> OpenCudaDevice(const CudaDeviceOptions& options) {
  return CudaDevice::Open(options);
}

absl::StatusOr<std::shared_ptr<CudaDevice>> CudaDevice::Open(const CudaDeviceOptions& options) {
  const cuda::CudaFacts facts = cuda::FindFacts(options.index);
  PSD_RETURN_IF_ERROR(cuda::CheckSupport(facts));
  if (options.shareable) PSD_RETURN_IF_ERROR(cuda::CheckSharing(facts));
  std::shared_ptr<CudaDevice> device(new CudaDevice(
      options, std::make_shared<CudaContext>(options.index, absl::StrCat("cuda:", options.index))));
  const absl::Status started = device->Start(options);
  if (started.ok()) return device;
  // UNAVAILABLE is for a device that was there.
  if (const std::string loss = device->context_->loss(); !loss.empty())
    return cuda::CannotBeOpened(
        options.index, loss,
        "look at the output of nvidia-smi: another process may hold the GPU exclusively, or the "
        "GPU may have to be reset");
  return started;
}

CudaDevice::CudaDevice(const CudaDeviceOptions& options, std::shared_ptr<CudaContext> context)
    : Device(context->name(), options.kernels),
      context_(std::move(context)),
      memory_(std::make_unique<DefaultMemory>(*this)),
      matrix_products_(context_, options.cublas_lt, options.allow_tf32),
      collectives_(cuda::NewNcclCollectives(*this, options.nccl)) {}

absl::Status CudaDevice::Start(const CudaDeviceOptions& options) {
  PSD_ASSIGN_OR_RETURN(device_memory_,
                       DeviceMemory::Create(context_, options.budget_bytes, options.shareable));
  PSD_ASSIGN_OR_RETURN(sharing_, CudaSharing::Create(*this, options.shareable));
  const size_t pinned_bytes = options.pinned_bytes != 0
                                  ? options.pinned_bytes
                                  : std::min(budget_bytes() / 16, kMostPinnedBytes);
  PSD_ASSIGN_OR_RETURN(pinned_, PinnedArena::Create(context_, pinned_bytes));
  Device* const self = this;
  completions_ = std::make_shared<CompletionThreads>(absl::MakeConstSpan(&self, 1));
  PSD_RETURN_IF_ERROR(completions_->started());
  PSD_ASSIGN_OR_RETURN(default_stream_, NewStream());
  return absl::OkStatus();
}

CudaDevice::~CudaDevice() {
  const ScopedBlocking blocking;
  if (completions_ != nullptr) completions_->Shutdown();
  static_cast<void>(Synchronize());
}

Allocator& CudaDevice::memory() {
  return *memory_;
}

absl::StatusOr<Stream*> CudaDevice::AddStream() {
  return NewStream();
}

absl::StatusOr<CudaStream*> CudaDevice::NewStream() {
  PSD_RETURN_IF_ERROR(context_->Enter());
  {
    MutexLock lock(mutex_);
    if (stream_count_ == kMaxStreams) return NoMoreStreams(name());
    ++stream_count_;
  }
  cudaStream_t handle = nullptr;
  const absl::Status made =
      context_->Check(cudaStreamCreateWithFlags(&handle, cudaStreamNonBlocking), "a new stream");
  MutexLock lock(mutex_);
  if (!made.ok()) {
    --stream_count_;
    return made;
  }
  streams_.push_back(std::make_unique<CudaStream>(
      *this, handle, absl::StrCat("stream ", streams_.size(), " of ", name())));
  return streams_.back().get();
}

CudaStream& CudaDevice::Here() {
  return static_cast<CudaStream&>(*CurrentStream(this));
}

absl::StatusOr<std::shared_ptr<Block>> CudaDevice::Allocate(CudaStream& stream, size_t bytes) {
  std::shared_ptr<CudaDevice> self = weak_from_this().lock();
  // A completion may ask while the destructor waits for it.
  if (self == nullptr) return DeviceEnds(name());
  PSD_ASSIGN_OR_RETURN(std::byte* const address, device_memory_->Allocate(stream, bytes));
  return std::make_shared<DeviceBlock>(address, bytes, std::move(self));
}

const MemoryPlace& CudaDevice::place() const {
  return memory_->place();
}

void CudaDevice::CallBehind(const std::vector<CudaStream*>& streams, CompletionThreads::Then then) {
  std::vector<std::shared_ptr<Event>> events;
  for (CudaStream* stream : streams) {
    absl::StatusOr<std::shared_ptr<Event>> event = stream->Record();
    if (event.ok()) {
      events.push_back(*std::move(event));
    } else {
      static_cast<void>(stream->WaitForAll());  // there is no memory for an event
    }
  }
  if (events.empty()) {
    std::move(then)(health());
    return;
  }
  const std::shared_ptr<Event> first = events.front();
  first->OnPassed(
      [events = std::move(events), then = std::move(then)](absl::Status result) mutable {
        for (const std::shared_ptr<Event>& event : events) result.Update(event->Wait());
        std::move(then)(std::move(result));
      });
}

absl::Status CudaDevice::CopyIn(std::byte* to, const std::byte* from, size_t bytes) {
  return Here().CopyInAndWait(to, from, bytes);
}

absl::Status CudaDevice::CopyOut(std::byte* to, const std::byte* from, size_t bytes) {
  return Here().CopyOutAndWait(to, from, bytes);
}

absl::Status CudaDevice::CopyWithin(std::byte* to, const std::byte* from, size_t bytes) {
  return Here().CopyFrom(to, *this, from, bytes);
}

absl::Status CudaDevice::Synchronize() {
  std::vector<CudaStream*> streams;
  {
    MutexLock lock(mutex_);
    for (const std::unique_ptr<CudaStream>& stream : streams_) streams.push_back(stream.get());
  }
  for (CudaStream* stream : streams) PSD_RETURN_IF_ERROR(stream->WaitForAll());
  return health();
}

}  // namespace psd
