#include "core/device/cuda/device_memory.h"

#include <cuda_runtime_api.h>
#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <iterator>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/executor.h"
#include "core/base/remedy.h"
#include "core/base/status.h"
#include "core/base/system_refusal.h"
#include "core/device/cuda/cuda_stream.h"
#include "core/device/device_errors.h"

namespace psd::cuda {
namespace {

// Returns the budget of a device for which none is given: a part of the free memory. The rest is
// for the code of kernels and for libraries.
constexpr size_t BudgetOf(size_t free_bytes) {
  return free_bytes / 10 * 9;
}

// CUDA does not document what its pools round sizes up to. This is what they align blocks to.
constexpr size_t kPoolUnit = 512;

// Returns how many bytes a pool takes for a block of `bytes` bytes; an empty block takes as many as
// one byte, so that each block has its own address. Requires: `bytes` is at most SIZE_MAX - 511.
size_t TakenBytes(size_t bytes) {
  return (std::max<size_t>(bytes, 1) + kPoolUnit - 1) / kPoolUnit * kPoolUnit;
}

absl::StatusOr<cudaMemPool_t> NewPool(CudaContext& context, bool shareable) {
  cudaMemPoolProps properties = {};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.handleTypes = shareable ? cudaMemHandleTypePosixFileDescriptor : cudaMemHandleTypeNone;
  properties.location.type = cudaMemLocationTypeDevice;
  properties.location.id = context.index();
  cudaMemPool_t pool = nullptr;
  PSD_RETURN_IF_ERROR(context.Check(cudaMemPoolCreate(&pool, &properties), "cudaMemPoolCreate"));
  // The pool takes more than the budget for tables outside of it.
  uint64_t kept = std::numeric_limits<uint64_t>::max();
  const absl::Status set =
      context.Check(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &kept),
                    "cudaMemPoolSetAttribute");
  if (set.ok()) return pool;
  cudaMemPoolDestroy(pool);
  return set;
}

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceMemory>> DeviceMemory::Create(
    std::shared_ptr<CudaContext> context, size_t budget_bytes, bool shareable) {
  PSD_RETURN_IF_ERROR(context->Enter());
  if (budget_bytes == 0) {
    size_t free = 0, total = 0;
    PSD_RETURN_IF_ERROR(context->Check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo"));
    budget_bytes = BudgetOf(free);
  }
  budget_bytes = budget_bytes / kPoolUnit * kPoolUnit;
  cudaStream_t freeing = nullptr;
  PSD_RETURN_IF_ERROR(context->Check(cudaStreamCreateWithFlags(&freeing, cudaStreamNonBlocking),
                                     "cudaStreamCreateWithFlags"));
  const absl::StatusOr<cudaMemPool_t> pool = NewPool(*context, shareable);
  if (!pool.ok()) {
    cudaStreamDestroy(freeing);
    return pool.status();
  }
  std::unique_ptr<DeviceMemory> memory(
      new DeviceMemory(std::move(context), *pool, freeing, budget_bytes));
  PSD_RETURN_IF_ERROR(memory->Reserve());
  return memory;
}

DeviceMemory::~DeviceMemory() {
  if (!context_->Enter().ok()) return;  // all of it ended with the device
  cudaStreamSynchronize(freeing_);
  cudaStreamDestroy(freeing_);
  cudaMemPoolDestroy(pool_);
}

// Allocates the budget and frees it. The pool keeps the memory.
absl::Status DeviceMemory::Reserve() {
  if (budget_bytes_ == 0) return absl::OkStatus();
  void* all = nullptr;
  const int error = cudaMallocFromPoolAsync(&all, budget_bytes_, pool_, freeing_);
  const absl::Status reserved =
      context_->Check(error, absl::StrCat("the budget of ", budget_bytes_, " bytes"));
  if (absl::IsResourceExhausted(reserved))
    return WithRemedy(absl::ResourceExhaustedError(absl::StrCat(
                          context_->name(), " cannot reserve its budget of ", budget_bytes_,
                          " bytes: ", context_->FreeBytes(), " bytes are free on the GPU")),
                      "lower the budget, or end other programs that use the GPU");
  PSD_RETURN_IF_ERROR(reserved);
  PSD_RETURN_IF_ERROR(context_->Check(cudaFreeAsync(all, freeing_), "cudaFreeAsync"));
  return context_->Check(cudaStreamSynchronize(freeing_), "cudaStreamSynchronize");
}

absl::StatusOr<std::byte*> DeviceMemory::Allocate(CudaStream& stream, size_t bytes) {
  PSD_RETURN_IF_ERROR(context_->health());
  {
    MutexLock lock(mutex_);
    if (bytes > budget_bytes_ || TakenBytes(bytes) > budget_bytes_ - used_bytes_)
      return NoMemory(context_->name(), bytes, budget_bytes_, used_bytes_);
    used_bytes_ += TakenBytes(bytes);
  }
  const absl::StatusOr<std::byte*> address = Take(stream, bytes);
  MutexLock lock(mutex_);
  if (address.ok()) {
    living_[*address] = {bytes, {{&stream}}, 0};
    return address;
  }
  used_bytes_ -= TakenBytes(bytes);
  if (!absl::IsResourceExhausted(address.status())) return address;
  return WithRemedy(
      absl::ResourceExhaustedError(absl::StrCat(
          context_->name(), " has no room for ", bytes, " bytes more: ", used_bytes_,
          " bytes of its budget of ", budget_bytes_, " are in use, but the GPU is full")),
      "end other programs that use the GPU, or drop values there");
}

absl::StatusOr<std::byte*> DeviceMemory::Take(CudaStream& stream, size_t bytes) {
  PSD_RETURN_IF_ERROR(context_->Enter());
  void* address = nullptr;
  int error = cudaMallocFromPoolAsync(&address, TakenBytes(bytes), pool_, stream.handle());
  if (error == cudaErrorMemoryAllocation) {
    // The memory of blocks that were freed may be in pieces, and in use until their streams get to
    // the end of it.
    cudaGetLastError();
    const ScopedBlocking blocking;
    PSD_RETURN_IF_ERROR(context_->Check(cudaDeviceSynchronize(), "cudaDeviceSynchronize"));
    PSD_RETURN_IF_ERROR(context_->Check(cudaMemPoolTrimTo(pool_, 0), "cudaMemPoolTrimTo"));
    error = cudaMallocFromPoolAsync(&address, TakenBytes(bytes), pool_, stream.handle());
  }
  PSD_RETURN_IF_ERROR(context_->Check(error, absl::StrCat("an allocation of ", bytes, " bytes")));
  return static_cast<std::byte*>(address);
}

// The budget has the bytes again only when the pool has them, so that a block which is allocated
// now finds them.
void DeviceMemory::Free(const std::byte* address) {
  Living block;
  {
    MutexLock lock(mutex_);
    const auto found = living_.find(address);
    block = std::move(found->second);
    living_.erase(found);
  }
  std::byte* const freed = const_cast<std::byte*>(address);
  if (context_->Enter().ok()) {  // otherwise the memory ended with the device
    // A free that CUDA refuses loses the memory, and the device if it is lost.
    static_cast<void>(block.users.size() == 1 ? FreeScratch(*block.users[0].stream, freed)
                                              : FreeBehind(freed, block.users));
  }
  MutexLock lock(mutex_);
  used_bytes_ -= TakenBytes(block.size);
}

absl::Status DeviceMemory::FreeBehind(std::byte* address, const std::vector<User>& users) {
  for (const User& user : users) {
    const absl::StatusOr<std::shared_ptr<Mark>> mark = context_->MarkIn(user.stream->handle());
    const int error = mark.ok()
                          ? cudaStreamWaitEvent(freeing_, (*mark)->event(), cudaEventWaitDefault)
                          // Without memory for an event, nothing but waiting here keeps the order.
                          : cudaStreamSynchronize(user.stream->handle());
    PSD_RETURN_IF_ERROR(context_->Check(error, "the free of a block"));
  }
  return context_->Check(cudaFreeAsync(address, freeing_), "cudaFreeAsync");
}

absl::Status DeviceMemory::AlsoUses(CudaStream& stream, const Block& block) {
  MutexLock lock(mutex_);
  Living* const living = Find(block);
  if (living == nullptr) return UnknownBlock(context_->name(), block);
  Declare(stream, *living);
  return absl::OkStatus();
}

void DeviceMemory::Declare(CudaStream& stream, Living& block) {
  const uint64_t declared = ++declarations_;
  for (User& user : block.users) {
    if (user.stream != &stream) continue;
    user.declared = declared;
    return;
  }
  block.users.push_back({&stream, declared});
}

absl::Status DeviceMemory::WaitForUsers(CudaStream& stream, const Block& block) {
  uint64_t last = 0;
  std::vector<CudaStream*> others;
  {
    MutexLock lock(mutex_);
    Living* const living = Find(block);
    if (living == nullptr) return UnknownBlock(context_->name(), block);
    last = declarations_;
    for (const User& user : living->users)
      if (user.stream != &stream) others.push_back(user.stream);
  }
  for (CudaStream* other : others) {
    PSD_ASSIGN_OR_RETURN(const std::shared_ptr<Mark> mark, context_->MarkIn(other->handle()));
    PSD_RETURN_IF_ERROR(stream.WaitForMark(*mark));
  }
  // Only now, so that an error drops no user. Those that have declared their use meanwhile stay.
  MutexLock lock(mutex_);
  Living* const living = Find(block);
  if (living == nullptr) return UnknownBlock(context_->name(), block);
  std::vector<User>& users = living->users;
  users.erase(std::remove_if(users.begin() + 1, users.end(),
                             [last](const User& user) { return user.declared <= last; }),
              users.end());
  Declare(stream, *living);
  return absl::OkStatus();
}

absl::StatusOr<std::byte*> DeviceMemory::AllocateScratch(CudaStream& stream, size_t bytes) {
  return Take(stream, bytes);
}

absl::Status DeviceMemory::FreeScratch(CudaStream& stream, std::byte* address) {
  PSD_RETURN_IF_ERROR(context_->Enter());
  return context_->Check(cudaFreeAsync(address, stream.handle()), "cudaFreeAsync");
}

absl::StatusOr<UniqueFd> DeviceMemory::ExportPool() {
  PSD_RETURN_IF_ERROR(context_->Enter());
  int descriptor = -1;
  PSD_RETURN_IF_ERROR(
      context_->Check(cudaMemPoolExportToShareableHandle(&descriptor, pool_,
                                                         cudaMemHandleTypePosixFileDescriptor, 0),
                      "cudaMemPoolExportToShareableHandle"));
  UniqueFd exported(descriptor);
  // Programs that this process starts must not have the memory.
  if (fcntl(exported.get(), F_SETFD, FD_CLOEXEC) != 0)
    return SystemRefusal("to close a descriptor of memory in other programs", errno);
  return exported;
}

void DeviceMemory::KeepImported(CudaStream& home, const std::byte* address, size_t bytes) {
  MutexLock lock(mutex_);
  Living& block = living_[address];
  block.size = bytes;
  ++block.imports;
  Declare(home, block);
}

std::vector<CudaStream*> DeviceMemory::DropImported(const std::byte* address) {
  MutexLock lock(mutex_);
  const auto found = living_.find(address);
  std::vector<CudaStream*> streams;
  for (const User& user : found->second.users) streams.push_back(user.stream);
  if (--found->second.imports == 0) living_.erase(found);
  return streams;
}

bool DeviceMemory::IsImported(const Block& block) const {
  MutexLock lock(mutex_);
  const auto found = living_.find(block.data());
  return found != living_.end() && found->second.imports > 0;
}

bool DeviceMemory::Contains(const std::byte* address, size_t bytes) const {
  MutexLock lock(mutex_);
  const auto behind = living_.upper_bound(address);
  if (behind == living_.begin()) return false;
  const auto& [begin, block] = *std::prev(behind);
  const auto before = static_cast<size_t>(address - begin);
  return before <= block.size && bytes <= block.size - before;
}

size_t DeviceMemory::used_bytes() const {
  MutexLock lock(mutex_);
  return used_bytes_;
}

DeviceMemory::Living* DeviceMemory::Find(const Block& block) {
  const auto found = living_.find(block.data());
  return found == living_.end() ? nullptr : &found->second;
}

}  // namespace psd::cuda
