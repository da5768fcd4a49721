#include "core/device/emulated/emulated_sharing.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/base/aligned_mapping.h"
#include "core/base/remedy.h"
#include "core/base/status.h"
#include "core/device/device_errors.h"
#include "core/device/emulated/emulated_device.h"
#include "core/device/emulated/quiet_lock.h"

namespace psd {
namespace {

using emulated::DeviceArena;
using emulated::PeerArenas;
using emulated::Quiet;
using emulated::QuietLock;
using emulated::QuietPtr;

// What a handle holds, in the byte order of the host.
struct Handle {
  uint64_t place = 0;  // in the memory file
  uint64_t bytes = 0;
};
static_assert(sizeof(Handle) == 16 && sizeof(Handle) <= DeviceSharing::kMostHandleBytes);
static_assert(std::is_trivially_copyable_v<Handle>);

// Processes on one host read the same, until the host starts again.
std::string BootId() {
  std::string id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> id;
  return id;
}

absl::Status BadHandle(absl::string_view device, absl::string_view what) {
  return WithRemedy(absl::InvalidArgumentError(absl::StrCat(
                        device, " cannot map a block of another process: the handle ", what)),
                    "pass what Export() of the other process's device gives");
}

}  // namespace

namespace emulated {

void PeerArenas::Add(const DeviceArena& arena) {
  QuietLock lock(mutex_);
  arenas_.push_back(&arena);
}

void PeerArenas::Remove(const DeviceArena& arena) {
  QuietLock lock(mutex_);
  arenas_.erase(std::find(arenas_.begin(), arenas_.end(), &arena));
}

bool PeerArenas::Contains(const void* address, size_t bytes) const {
  QuietLock lock(mutex_);
  return std::any_of(arenas_.begin(), arenas_.end(),
                     [&](const DeviceArena* arena) { return arena->Contains(address, bytes); });
}

std::byte* PeerArenas::Inside(const void* address) const {
  QuietLock lock(mutex_);
  for (const DeviceArena* arena : arenas_)
    if (arena->Contains(address, 1)) return arena->Inside(address);
  return nullptr;
}

}  // namespace emulated

// A mapped memory file, and which of its blocks are open. Thread-safe.
class EmulatedSharing::Mapped {
 public:
  Mapped(std::string device, std::unique_ptr<DeviceArena> arena, QuietPtr<PeerArenas> peers)
      : device_(std::move(device)), arena_(std::move(arena)), peers_(std::move(peers)) {
    peers_->Add(*arena_);
  }
  ~Mapped() { peers_->Remove(*arena_); }
  Mapped(const Mapped&) = delete;
  Mapped& operator=(const Mapped&) = delete;

  // Opens the block that `handle` names, which may be open already, and returns its address.
  absl::StatusOr<std::byte*> Open(absl::string_view handle, size_t bytes) {
    PSD_ASSIGN_OR_RETURN(const size_t place, Parse(handle, bytes));
    std::byte* const address = arena_->AtPlace(place);
    QuietLock lock(mutex_);
    if (const auto open = open_.find(place); open != open_.end() && open->second.bytes == bytes) {
      ++open->second.users;
      return address;
    }
    if (Overlaps(place, bytes))
      return BadHandle(device_, absl::StrCat("names ", bytes, " bytes at ", place,
                                             ", of which others have not been released"));
    PSD_RETURN_IF_ERROR(arena_->OpenForReading(address, bytes));
    open_[place] = {bytes, 1};
    return address;
  }

  // Takes back one call of Open.
  void Close(const std::byte* address) {
    QuietLock lock(mutex_);
    const auto open = open_.find(arena_->PlaceOf(address));
    if (--open->second.users > 0) return;
    arena_->CloseForReading(address, open->second.bytes);
    open_.erase(open);
  }

 private:
  struct Opened {
    size_t bytes = 0;
    size_t users = 0;
  };

  absl::StatusOr<size_t> Parse(absl::string_view handle, size_t bytes) const {
    Handle parsed;
    if (handle.size() != sizeof(parsed))
      return BadHandle(device_,
                       absl::StrCat("has ", handle.size(), " bytes, not ", sizeof(parsed)));
    std::memcpy(&parsed, handle.data(), sizeof(parsed));
    if (parsed.bytes != bytes)
      return BadHandle(device_, absl::StrCat("names a block of ", parsed.bytes,
                                             " bytes, and one of ", bytes, " is asked for"));
    if (!arena_->CanHaveBlock(parsed.place, bytes))
      return BadHandle(device_, absl::StrCat("names ", bytes, " bytes at ", parsed.place,
                                             ", where no block can be"));
    return static_cast<size_t>(parsed.place);
  }

  // The pages of a block, as places.
  static size_t FirstPage(size_t place) { return place / kPageBytes * kPageBytes; }
  static size_t EndOfPages(size_t place, size_t bytes) {
    return FirstPage(place) + DeviceArena::BytesOf(bytes) - kPageBytes;
  }
  // Whether an open block has pages of this one.
  bool Overlaps(size_t place, size_t bytes) const PSD_REQUIRES(mutex_) {
    const auto next = open_.lower_bound(FirstPage(place));
    if (next != open_.end() && next->first < EndOfPages(place, bytes)) return true;
    if (next == open_.begin()) return false;
    const auto& [before, opened] = *std::prev(next);
    return EndOfPages(before, opened.bytes) > FirstPage(place);
  }

  const std::string device_;
  const std::unique_ptr<DeviceArena> arena_;
  const QuietPtr<PeerArenas> peers_;  // shared by the device and its mapped memory
  Mutex mutex_;                       // leaf
  std::map<size_t, Opened> open_ PSD_GUARDED_BY(mutex_);  // by place
};

// Keeps the mapped memory until it is destroyed behind the work that uses it.
class EmulatedSharing::ImportedBlock : public Block {
 public:
  ImportedBlock(std::byte* data, size_t size, EmulatedDevice& device, QuietPtr<Mapped> mapped,
                std::function<void()> released)
      : Block(data, size, device.place()),
        device_(device),
        mapped_(std::move(mapped)),
        released_(std::move(released)) {}
  ~ImportedBlock() override {
    device_.DropImported(data(),
                         [mapped = mapped_, address = data(), released = std::move(released_)] {
                           mapped->Close(address);
                           released();
                         });
  }

 private:
  EmulatedDevice& device_;         // kept alive by its blocks
  const QuietPtr<Mapped> mapped_;  // shared by the memory, its blocks, and what closes them
  std::function<void()> released_;
};

// Does not keep the device alive.
class EmulatedSharing::Memory : public PeerDeviceMemory {
 public:
  Memory(EmulatedDevice& device, QuietPtr<Mapped> mapped)
      : name_(device.name()), mapped_(std::move(mapped)) {
    const Quiet quiet;
    device_ = device.weak_from_this();
  }
  ~Memory() override {
    const Quiet quiet;
    device_.reset();
  }

  absl::StatusOr<std::shared_ptr<Block>> Import(absl::string_view handle, size_t bytes,
                                                std::function<void()> released) override {
    const QuietPtr<EmulatedDevice> device = Device();
    if (device.get() == nullptr) return DeviceEnds(name_);
    PSD_RETURN_IF_ERROR(device->health());
    PSD_ASSIGN_OR_RETURN(std::byte* const address, mapped_->Open(handle, bytes));
    device->KeepImported(address, bytes);
    return std::make_shared<ImportedBlock>(address, bytes, *device, mapped_, std::move(released));
  }

 private:
  QuietPtr<EmulatedDevice> Device() const {
    const Quiet quiet;
    return QuietPtr<EmulatedDevice>(device_.lock());
  }

  const std::string name_;
  const QuietPtr<Mapped> mapped_;  // shared by the memory, its blocks, and what closes them
  std::weak_ptr<EmulatedDevice> device_;
};

EmulatedSharing::EmulatedSharing(EmulatedDevice& device, int number, bool exports)
    : device_(device),
      identity_(absl::StrCat("emulated:", BootId(), ":", number)),
      exports_(exports),
      peers_(std::make_shared<PeerArenas>()) {}

absl::StatusOr<UniqueFd> EmulatedSharing::Descriptor() {
  PSD_CHECK(exports_, "the device exports its memory");
  PSD_RETURN_IF_ERROR(device_.health());
  return device_.arena().Descriptor();
}

absl::StatusOr<std::string> EmulatedSharing::Export(const Block& block) {
  PSD_CHECK(exports_, "the device exports its memory");
  PSD_RETURN_IF_ERROR(device_.health());
  if (block.place().device() != &device_) return UnknownBlock(device_.name(), block);
  const DeviceArena& arena = device_.arena();
  if (!arena.Contains(block.data(), block.size())) return NotToBeExported(device_.name());
  const Handle handle{arena.PlaceOf(block.data()), block.size()};
  return std::string(reinterpret_cast<const char*>(&handle), sizeof(handle));
}

absl::StatusOr<std::shared_ptr<PeerDeviceMemory>> EmulatedSharing::Open(UniqueFd descriptor) {
  PSD_RETURN_IF_ERROR(device_.health());
  PSD_ASSIGN_OR_RETURN(std::unique_ptr<DeviceArena> arena,
                       DeviceArena::OfPeer(device_.name(), std::move(descriptor)));
  const QuietPtr<Mapped> mapped(std::make_shared<Mapped>(device_.name(), std::move(arena), peers_));
  return std::make_shared<Memory>(device_, mapped);
}

}  // namespace psd
