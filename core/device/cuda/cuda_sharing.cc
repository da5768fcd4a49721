#include "core/device/cuda/cuda_sharing.h"

#include <cuda_runtime_api.h>
#include <fcntl.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/base/remedy.h"
#include "core/base/status.h"
#include "core/base/system_refusal.h"
#include "core/device/cuda/cuda_context.h"
#include "core/device/cuda/cuda_device.h"
#include "core/device/cuda/cuda_stream.h"
#include "core/device/cuda/device_memory.h"
#include "core/device/device_errors.h"

namespace psd {
namespace {

using cuda::CudaContext;

// What a handle holds, in the byte order of the host.
struct Handle {
  cudaMemPoolPtrExportData block;  // CUDA's name for it
  uint64_t bytes = 0;
};
static_assert(sizeof(Handle) == 72 && sizeof(Handle) <= DeviceSharing::kMostHandleBytes);
static_assert(std::is_trivially_copyable_v<Handle>);

// Returns `status`, of a call about what another process has passed. Only CUDA can tell whether
// that is right, and it refuses the call if it is not.
absl::Status Judged(const absl::Status& status, absl::string_view device, absl::string_view what,
                    absl::string_view remedy) {
  if (!absl::IsInternal(status)) return status;
  return WithRemedy(absl::InvalidArgumentError(absl::StrCat(
                        device, " cannot map ", what, " of another process: ", status.message())),
                    remedy);
}

absl::Status BadHandle(absl::string_view device, absl::string_view what) {
  return WithRemedy(absl::InvalidArgumentError(absl::StrCat(
                        device, " cannot map a block of another process: the handle ", what)),
                    "pass what Export() of the other process's device gives");
}

}  // namespace

// The pool of another process, and which of its blocks are mapped. Thread-safe.
class CudaSharing::Mapped {
 public:
  // Takes over the pool and the stream.
  Mapped(std::shared_ptr<CudaContext> context, cudaMemPool_t pool, cudaStream_t freeing)
      : context_(std::move(context)), pool_(pool), freeing_(freeing) {}
  ~Mapped() {
    if (!context_->Enter().ok()) return;  // all of it ended with the device
    cudaStreamDestroy(freeing_);
    cudaMemPoolDestroy(pool_);
  }
  Mapped(const Mapped&) = delete;
  Mapped& operator=(const Mapped&) = delete;

  // Maps the block that `handle` names, which may be mapped already, and returns its address. CUDA
  // does not say what a second import of a mapped block does, so there is none.
  absl::StatusOr<std::byte*> Map(absl::string_view handle, size_t bytes) {
    const std::string& device = context_->name();
    Handle parsed;
    if (handle.size() != sizeof(parsed))
      return BadHandle(device, absl::StrCat("has ", handle.size(), " bytes, not ", sizeof(parsed)));
    std::memcpy(&parsed, handle.data(), sizeof(parsed));
    if (parsed.bytes != bytes)
      return BadHandle(device, absl::StrCat("names a block of ", parsed.bytes,
                                            " bytes, and one of ", bytes, " is asked for"));
    PSD_RETURN_IF_ERROR(context_->Enter());
    MutexLock lock(mutex_);
    if (const auto found = mapped_.find(NameIn(handle)); found != mapped_.end()) {
      if (found->second.bytes != bytes)
        return BadHandle(device, absl::StrCat("names a block that is mapped with ",
                                              found->second.bytes, " bytes, not ", bytes));
      ++found->second.users;
      return found->second.address;
    }
    void* address = nullptr;
    const int error = cudaMemPoolImportPointer(&address, pool_, &parsed.block);
    PSD_RETURN_IF_ERROR(Judged(context_->Check(error, "cudaMemPoolImportPointer"), device,
                               "a block", "pass the handle of a block that is not freed"));
    mapped_[std::string(NameIn(handle))] = {static_cast<std::byte*>(address), bytes, 1};
    return static_cast<std::byte*>(address);
  }

  // Takes back one call of Map. The last one waits until the block has been freed: its owner may
  // free it only then. Requires: no work uses the block, or the device is lost.
  void Unmap(const std::string& handle) {
    MutexLock lock(mutex_);
    const auto found = mapped_.find(NameIn(handle));
    if (--found->second.users > 0) return;
    std::byte* const address = found->second.address;
    mapped_.erase(found);
    if (!context_->Enter().ok()) return;  // the mapping ended with the device
    // The stream has nothing else to do, so this takes as long as the call itself. A free that CUDA
    // refuses leaves the block mapped, and the device is lost if CUDA says so.
    int error = cudaFreeAsync(address, freeing_);
    if (error == cudaSuccess) error = cudaStreamSynchronize(freeing_);
    static_cast<void>(context_->Check(error, "the free of a block of another process"));
  }

 private:
  struct Block {
    std::byte* address = nullptr;
    size_t bytes = 0;
    size_t users = 0;
  };

  // CUDA's name of the block.
  static absl::string_view NameIn(absl::string_view handle) {
    return handle.substr(0, sizeof(cudaMemPoolPtrExportData));
  }

  const std::shared_ptr<CudaContext> context_;  // shared by the device's parts and events
  const cudaMemPool_t pool_;
  const cudaStream_t freeing_;  // frees blocks, and does nothing else
  Mutex mutex_;                 // before: CudaContext
  std::map<std::string, Block, std::less<>> mapped_ PSD_GUARDED_BY(mutex_);  // by name
};

class CudaSharing::ImportedBlock : public Block {
 public:
  ImportedBlock(std::byte* data, size_t size, std::shared_ptr<CudaDevice> device,
                std::shared_ptr<Mapped> mapped, std::string handle, std::function<void()> released)
      : Block(data, size, device->place()),
        device_(std::move(device)),
        mapped_(std::move(mapped)),
        handle_(std::move(handle)),
        released_(std::move(released)) {}
  ~ImportedBlock() override {
    const std::vector<CudaStream*> users = device_->device_memory().DropImported(data());
    device_->CallBehind(users, [mapped = std::move(mapped_), handle = std::move(handle_),
                                released = std::move(released_)](const absl::Status& /*result*/) {
      mapped->Unmap(handle);
      released();
    });
  }

 private:
  const std::shared_ptr<CudaDevice> device_;  // kept alive by its blocks
  std::shared_ptr<Mapped> mapped_;            // shared by the memory and its blocks
  std::string handle_;
  std::function<void()> released_;
};

// Does not keep the device alive.
class CudaSharing::Memory : public PeerDeviceMemory {
 public:
  Memory(CudaDevice& device, std::shared_ptr<Mapped> mapped)
      : name_(device.name()), device_(device.weak_from_this()), mapped_(std::move(mapped)) {}

  absl::StatusOr<std::shared_ptr<Block>> Import(absl::string_view handle, size_t bytes,
                                                std::function<void()> released) override {
    std::shared_ptr<CudaDevice> device = device_.lock();
    if (device == nullptr) return DeviceEnds(name_);
    PSD_ASSIGN_OR_RETURN(std::byte* const address, mapped_->Map(handle, bytes));
    device->device_memory().KeepImported(device->Here(), address, bytes);
    return std::make_shared<ImportedBlock>(address, bytes, std::move(device), mapped_,
                                           std::string(handle), std::move(released));
  }

 private:
  const std::string name_;
  const std::weak_ptr<CudaDevice> device_;
  const std::shared_ptr<Mapped> mapped_;  // shared by the memory and its blocks
};

absl::StatusOr<std::unique_ptr<CudaSharing>> CudaSharing::Create(CudaDevice& device, bool exports) {
  CudaContext& context = device.context();
  PSD_RETURN_IF_ERROR(context.Enter());
  cudaDeviceProp properties = {};
  PSD_RETURN_IF_ERROR(context.Check(cudaGetDeviceProperties(&properties, context.index()),
                                    "cudaGetDeviceProperties"));
  std::string identity =
      absl::StrCat("cuda:", absl::BytesToHexString(absl::string_view(
                                properties.uuid.bytes, sizeof(properties.uuid.bytes))));
  return std::unique_ptr<CudaSharing>(new CudaSharing(device, std::move(identity), exports));
}

CudaSharing::CudaSharing(CudaDevice& device, std::string identity, bool exports)
    : device_(device), identity_(std::move(identity)), exports_(exports) {}

absl::StatusOr<UniqueFd> CudaSharing::Descriptor() {
  PSD_CHECK(exports_, "the device exports its memory");
  PSD_RETURN_IF_ERROR(device_.health());
  MutexLock lock(mutex_);
  if (!exported_.valid()) {
    PSD_ASSIGN_OR_RETURN(exported_, device_.device_memory().ExportPool());
  }
  UniqueFd copy(fcntl(exported_.get(), F_DUPFD_CLOEXEC, 0));
  if (copy.valid()) return copy;
  return SystemRefusal(absl::StrCat("a descriptor of the memory of ", device_.name()), errno);
}

absl::StatusOr<std::string> CudaSharing::Export(const Block& block) {
  PSD_CHECK(exports_, "the device exports its memory");
  CudaContext& context = device_.context();
  PSD_RETURN_IF_ERROR(context.Enter());
  if (block.place().device() != &device_) return UnknownBlock(device_.name(), block);
  if (device_.device_memory().IsImported(block)) return NotToBeExported(device_.name());
  Handle handle;
  handle.bytes = block.size();
  PSD_RETURN_IF_ERROR(context.Check(cudaMemPoolExportPointer(&handle.block, block.data()),
                                    "cudaMemPoolExportPointer"));
  return std::string(reinterpret_cast<const char*>(&handle), sizeof(handle));
}

absl::StatusOr<std::shared_ptr<PeerDeviceMemory>> CudaSharing::Open(UniqueFd descriptor) {
  const std::shared_ptr<CudaContext> context = device_.context().shared_from_this();
  PSD_RETURN_IF_ERROR(context->Enter());
  cudaStream_t freeing = nullptr;
  PSD_RETURN_IF_ERROR(context->Check(cudaStreamCreateWithFlags(&freeing, cudaStreamNonBlocking),
                                     "cudaStreamCreateWithFlags"));
  cudaMemPool_t pool = nullptr;
  // CUDA takes the descriptor itself in place of a pointer, and does not close it.
  auto* const passed = reinterpret_cast<void*>(static_cast<uintptr_t>(descriptor.get()));
  const int error =
      cudaMemPoolImportFromShareableHandle(&pool, passed, cudaMemHandleTypePosixFileDescriptor, 0);
  const absl::Status imported = Judged(
      context->Check(error, "cudaMemPoolImportFromShareableHandle"), context->name(), "memory",
      "pass the descriptor that Descriptor() of a device with the same identity gives");
  if (!imported.ok()) {
    cudaStreamDestroy(freeing);
    return imported;
  }
  const auto mapped = std::make_shared<Mapped>(context, pool, freeing);
  // Where CUDA can, a kernel that writes to a block of another process loses the device, instead of
  // changing what others read. It may also refuse, and then the memory can be read all the same.
  cudaMemAccessDesc access = {};
  access.location.type = cudaMemLocationTypeDevice;
  access.location.id = context->index();
  access.flags = cudaMemAccessFlagsProtRead;
  const absl::Status limited =
      context->Check(cudaMemPoolSetAccess(pool, &access, 1), "cudaMemPoolSetAccess");
  if (!limited.ok() && !absl::IsInternal(limited)) return limited;
  return std::make_shared<Memory>(device_, mapped);
}

}  // namespace psd
