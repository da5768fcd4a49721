#include "core/device/cuda/pinned_arena.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/mutex.h"
#include "core/base/remedy.h"
#include "core/base/status.h"
#include "core/device/device_errors.h"
#include "core/device/stream_pool.h"

namespace psd::cuda {
namespace {

// Every block has a byte, so that it has an address of its own.
size_t PartBytes(size_t bytes) {
  return (std::max<size_t>(bytes, 1) + kBlockAlignment - 1) / kBlockAlignment * kBlockAlignment;
}

}  // namespace

class PinnedArena::State {
 public:
  State(std::shared_ptr<CudaContext> context, std::byte* memory, size_t bytes)
      : context_(std::move(context)), memory_(memory), bytes_(bytes), pool_(bytes) {}
  ~State() {
    if (memory_ != nullptr && context_->Enter().ok())
      static_cast<void>(context_->Check(cudaFreeHost(memory_), "cudaFreeHost"));
  }

  absl::StatusOr<std::byte*> Take(size_t bytes) {
    const std::string what = absl::StrCat("pinned memory of ", context_->name());
    MutexLock lock(mutex_);
    // Nearly the largest size_t must not be rounded up to a small one.
    if (bytes > bytes_ || PartBytes(bytes) > bytes_ - used_bytes_)
      return NoMemory(what, bytes, bytes_, used_bytes_);
    // All parts are for the host, so there is no stream to wait for.
    const std::optional<StreamPool::Part> part = pool_.Take(PartBytes(bytes), 0);
    if (!part.has_value())
      return WithRemedy(
          absl::ResourceExhaustedError(absl::StrCat(
              what, " has no ", bytes, " bytes in one piece: the largest free piece has ",
              pool_.largest_free_bytes(), " bytes, ", used_bytes_, " of ", bytes_,
              " bytes are in use")),
          "copy fewer bytes at once, or raise the budget");
    used_bytes_ += PartBytes(bytes);
    blocks_.emplace(memory_ + part->offset, bytes);
    return memory_ + part->offset;
  }

  void Give(std::byte* address) {
    MutexLock lock(mutex_);
    const auto found = blocks_.find(address);
    used_bytes_ -= PartBytes(found->second);
    blocks_.erase(found);
    pool_.Give(static_cast<size_t>(address - memory_), {});
  }

  bool Contains(const std::byte* address, size_t bytes) const {
    MutexLock lock(mutex_);
    const auto behind = blocks_.upper_bound(address);
    if (behind == blocks_.begin()) return false;
    const auto& [begin, size] = *std::prev(behind);
    const auto before = static_cast<size_t>(address - begin);
    return before <= size && bytes <= size - before;
  }

 private:
  const std::shared_ptr<CudaContext> context_;  // shared by the device's parts and events
  std::byte* const memory_;
  const size_t bytes_;
  mutable Mutex mutex_;  // leaf
  StreamPool pool_ PSD_GUARDED_BY(mutex_);
  size_t used_bytes_ PSD_GUARDED_BY(mutex_) = 0;
  std::map<const std::byte*, size_t> blocks_ PSD_GUARDED_BY(mutex_);  // sizes by address
};

class PinnedArena::PinnedBlock : public Block {
 public:
  PinnedBlock(std::byte* data, size_t size, std::shared_ptr<State> state)
      : Block(data, size), state_(std::move(state)) {}
  ~PinnedBlock() override { state_->Give(data()); }

 private:
  const std::shared_ptr<State> state_;  // shared by the arena and its blocks
};

absl::StatusOr<std::unique_ptr<PinnedArena>> PinnedArena::Create(
    std::shared_ptr<CudaContext> context, size_t bytes) {
  bytes = bytes / kBlockAlignment * kBlockAlignment;
  PSD_RETURN_IF_ERROR(context->Enter());
  void* memory = nullptr;
  if (bytes > 0) {
    const int error = cudaHostAlloc(&memory, bytes, cudaHostAllocPortable);
    PSD_RETURN_IF_ERROR(
        context->Check(error, absl::StrCat("the ", bytes, " bytes of pinned memory")));
  }
  return std::unique_ptr<PinnedArena>(new PinnedArena(
      std::make_shared<State>(std::move(context), static_cast<std::byte*>(memory), bytes)));
}

absl::StatusOr<std::shared_ptr<Block>> PinnedArena::Allocate(size_t bytes) {
  PSD_ASSIGN_OR_RETURN(std::byte* const address, state_->Take(bytes));
  return std::make_shared<PinnedBlock>(address, bytes, state_);
}

bool PinnedArena::Contains(const std::byte* address, size_t bytes) const {
  return state_->Contains(address, bytes);
}

}  // namespace psd::cuda
