#include "tests/device/apart_device.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <map>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/mutex.h"
#include "core/base/status.h"
#include "tests/device/apart_kernels.h"

namespace psd::testing {
namespace {

constexpr size_t kUnit = kBlockAlignment;

std::byte* Map(int file, size_t bytes, int access) {
  void* const address = mmap(nullptr, bytes, access, MAP_SHARED, file, 0);
  PSD_CHECK(address != MAP_FAILED, "the test needs two mappings");
  return static_cast<std::byte*>(address);
}

}  // namespace

// The two mappings, and which parts of them are in use.
class ApartDevice::Arena {
 public:
  explicit Arena(size_t bytes) : bytes_(bytes) {
    const int file = memfd_create("apart", 0);
    PSD_CHECK(file >= 0 && ftruncate(file, static_cast<off_t>(bytes)) == 0, "a memory file");
    outside_ = Map(file, bytes, PROT_NONE);
    inside_ = Map(file, bytes, PROT_READ | PROT_WRITE);
    close(file);
    free_[0] = bytes;
  }
  ~Arena() {
    munmap(outside_, bytes_);
    munmap(inside_, bytes_);
  }

  // Returns null if no part is large enough.
  std::byte* Take(size_t bytes) PSD_EXCLUDES(mutex_) {
    const size_t size = Rounded(bytes);
    MutexLock lock(mutex_);
    const auto found = std::find_if(free_.begin(), free_.end(),
                                    [size](const auto& part) { return part.second >= size; });
    if (found == free_.end()) return nullptr;
    const auto [offset, room] = *found;
    free_.erase(found);
    if (room > size) free_[offset + size] = room - size;
    used_ += size;
    return outside_ + offset;
  }
  void Give(const std::byte* address, size_t bytes) PSD_EXCLUDES(mutex_) {
    const size_t size = Rounded(bytes);
    std::memset(Inside(address), 0xcd, size);
    MutexLock lock(mutex_);
    free_[static_cast<size_t>(address - outside_)] = size;
    used_ -= size;
  }
  std::byte* Inside(const void* address) const {
    const auto offset = static_cast<const std::byte*>(address) - outside_;
    PSD_CHECK(offset >= 0 && static_cast<size_t>(offset) <= bytes_,
              "an address that is not on the device was given to its kernel");
    return inside_ + offset;
  }
  size_t used() const PSD_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return used_;
  }

  std::atomic<bool> lost{false};
  std::atomic<int> kernels{0};

 private:
  static size_t Rounded(size_t bytes) {
    return std::max(kUnit, (bytes + kUnit - 1) / kUnit * kUnit);
  }

  const size_t bytes_;
  std::byte* outside_ = nullptr;
  std::byte* inside_ = nullptr;
  mutable Mutex mutex_;                                   // leaf
  std::map<size_t, size_t> free_ PSD_GUARDED_BY(mutex_);  // sizes by offset
  size_t used_ PSD_GUARDED_BY(mutex_) = 0;
};

class ApartDevice::Memory : public Allocator {
 public:
  explicit Memory(ApartDevice& device) : device_(device), place_(MemoryPlace::On(device)) {}

  absl::StatusOr<std::shared_ptr<Block>> Allocate(size_t bytes) override {
    std::byte* const address = device_.arena_->Take(bytes);
    if (address != nullptr)
      return std::make_shared<ApartBlock>(address, bytes, place_, device_.shared_from_this());
    return absl::ResourceExhaustedError(
        absl::StrCat(device_.name(), " has no room for ", bytes, " bytes"));
  }

 private:
  class ApartBlock : public Block {
   public:
    ApartBlock(std::byte* data, size_t size, const MemoryPlace& place,
               std::shared_ptr<ApartDevice> device)
        : Block(data, size, place), device_(std::move(device)) {}
    ~ApartBlock() override { device_->arena_->Give(data(), size()); }

   private:
    const std::shared_ptr<ApartDevice> device_;  // shared by its blocks
  };

  ApartDevice& device_;
  const MemoryPlace place_;
};

std::shared_ptr<ApartDevice> ApartDevice::Create(std::string name, size_t bytes) {
  return std::shared_ptr<ApartDevice>(new ApartDevice(std::move(name), bytes));
}

ApartDevice::ApartDevice(std::string name, size_t bytes)
    : Device(std::move(name), ApartKernels()),
      arena_(std::make_unique<Arena>(bytes)),
      memory_(std::make_unique<Memory>(*this)) {}

ApartDevice::~ApartDevice() = default;

Allocator& ApartDevice::memory() {
  return *memory_;
}

absl::Status ApartDevice::CheckAlive() const {
  if (!arena_->lost) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(name(), " is lost"));
}

absl::Status ApartDevice::CopyIn(std::byte* to, const std::byte* from, size_t bytes) {
  PSD_RETURN_IF_ERROR(CheckAlive());
  MutexLock lock(work_);
  std::memcpy(Inside(to), from, bytes);
  return absl::OkStatus();
}

absl::Status ApartDevice::CopyOut(std::byte* to, const std::byte* from, size_t bytes) {
  PSD_RETURN_IF_ERROR(CheckAlive());
  MutexLock lock(work_);
  std::memcpy(to, Inside(from), bytes);
  return absl::OkStatus();
}

absl::Status ApartDevice::CopyWithin(std::byte* to, const std::byte* from, size_t bytes) {
  PSD_RETURN_IF_ERROR(CheckAlive());
  MutexLock lock(work_);
  std::memcpy(Inside(to), Inside(from), bytes);
  return absl::OkStatus();
}

absl::Status ApartDevice::Synchronize() {
  return CheckAlive();
}

void ApartDevice::Lose() {
  arena_->lost = true;
}

size_t ApartDevice::used_bytes() const {
  return arena_->used();
}

int ApartDevice::kernels_run() const {
  return arena_->kernels;
}

std::byte* ApartDevice::Inside(const void* address) const {
  return arena_->Inside(address);
}

std::unique_ptr<MutexLock> ApartDevice::BeginKernel() {
  ++arena_->kernels;
  return std::make_unique<MutexLock>(work_);
}

}  // namespace psd::testing
