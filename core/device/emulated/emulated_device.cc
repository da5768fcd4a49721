#include "core/device/emulated/emulated_device.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/device.h"
#include "core/base/executor.h"
#include "core/base/memory_place.h"
#include "core/base/remedy.h"
#include "core/base/status.h"
#include "core/base/tsan.h"
#include "core/device/device_errors.h"
#include "core/device/emulated/quiet_lock.h"

namespace psd {
namespace {

using emulated::DeviceArena;
using emulated::QuietLock;
using emulated::QuietPtr;
using emulated::StreamScheduler;

// With more blocks, their red zones are checked only when they are freed and by Synchronize.
constexpr size_t kMostCheckedBlocks = 256;

// The arena has more room than the budget, because its blocks take whole pages.
size_t ArenaBytes(const EmulatedDeviceOptions& options) {
  return 2 * options.budget_bytes + 2 * options.most_blocks * DeviceArena::BytesOf(1);
}

absl::Status CheckOptions(int count, const EmulatedDeviceOptions& options) {
  constexpr size_t kMostBudgetBytes = size_t{1} << 40, kMostBlocks = 1'000'000;
  if (count >= 1 && options.budget_bytes <= kMostBudgetBytes && options.most_blocks <= kMostBlocks)
    return absl::OkStatus();
  return WithRemedy(absl::InvalidArgumentError(
                        absl::StrCat(count, " emulated devices of ", options.budget_bytes,
                                     " bytes and ", options.most_blocks, " blocks cannot be made")),
                    absl::StrCat("ask for at least 1 device, and at most ", kMostBudgetBytes,
                                 " bytes and ", kMostBlocks, " blocks"));
}

std::string NameOf(int number) {
  return absl::StrCat("emu:", number);
}

// Counts down to a fault. Returns whether it happens now.
bool HappensNow(int& countdown) {
  return countdown > 0 && --countdown == 0;
}

}  // namespace

class EmulatedDevice::DefaultMemory : public Allocator {
 public:
  explicit DefaultMemory(EmulatedDevice& device)
      : device_(device), place_(MemoryPlace::On(device)) {}
  absl::StatusOr<std::shared_ptr<Block>> Allocate(size_t bytes) override {
    return CurrentStream(&device_)->Allocate(bytes);
  }
  const MemoryPlace& place() const { return place_; }

 private:
  EmulatedDevice& device_;
  const MemoryPlace place_;
};

class EmulatedDevice::DeviceBlock : public Block {
 public:
  DeviceBlock(std::byte* data, size_t size, EmulatedDevice& device)
      : Block(data, size, device.memory_->place()), device_(device) {}
  ~DeviceBlock() override { device_.Free(data()); }

 private:
  EmulatedDevice& device_;
};

absl::StatusOr<std::vector<std::shared_ptr<EmulatedDevice>>> EmulatedDevice::Create(
    int count, const EmulatedDeviceOptions& options) {
  PSD_RETURN_IF_ERROR(CheckOptions(count, options));
  std::vector<EmulatedDeviceSpec> specs;
  for (int i = 0; i < count; ++i) specs.push_back({i, options.budget_bytes});
  return Create(specs, options);
}

absl::StatusOr<std::vector<std::shared_ptr<EmulatedDevice>>> EmulatedDevice::Create(
    absl::Span<const EmulatedDeviceSpec> specs, const EmulatedDeviceOptions& options) {
  PSD_ASSIGN_OR_RETURN(const QuietPtr<StreamScheduler> scheduler,
                       StreamScheduler::Create(options.seed));
  std::vector<std::shared_ptr<EmulatedDevice>> devices;
  for (const EmulatedDeviceSpec& spec : specs) {
    EmulatedDeviceOptions own = options;
    own.budget_bytes = spec.budget_bytes;
    PSD_RETURN_IF_ERROR(CheckOptions(static_cast<int>(specs.size()), own));
    PSD_ASSIGN_OR_RETURN(std::unique_ptr<DeviceArena> arena,
                         DeviceArena::Create(NameOf(spec.number), ArenaBytes(own)));
    devices.push_back(std::shared_ptr<EmulatedDevice>(
        new EmulatedDevice(spec.number, own, scheduler, std::move(arena))));
    PSD_ASSIGN_OR_RETURN(devices.back()->default_stream_, devices.back()->NewStream());
  }
  return devices;
}

EmulatedDevice::EmulatedDevice(int number, const EmulatedDeviceOptions& options,
                               QuietPtr<StreamScheduler> scheduler,
                               std::unique_ptr<DeviceArena> arena)
    : Device(NameOf(number), options.kernels),
      budget_bytes_(options.budget_bytes),
      most_blocks_(options.most_blocks),
      scheduler_(std::move(scheduler)),
      arena_(std::move(arena)),
      pinned_(std::make_unique<emulated::PinnedMemory>(absl::StrCat("pinned memory of ", name()),
                                                       options.pinned_bytes)),
      memory_(std::make_unique<DefaultMemory>(*this)),
      sharing_(std::make_unique<EmulatedSharing>(*this, number, options.shareable)),
      pool_(ArenaBytes(options)) {}

EmulatedDevice::~EmulatedDevice() {
  PSD_TSAN_ACQUIRE(this);  // all blocks were freed before
  const ScopedBlocking blocking;
  scheduler_->WaitForAll();
}

EmulatedStream& EmulatedDevice::Here() {
  return static_cast<EmulatedStream&>(*CurrentStream(this));
}

Allocator& EmulatedDevice::memory() {
  return *memory_;
}

absl::Status EmulatedDevice::CopyIn(std::byte* to, const std::byte* from, size_t bytes) {
  return Here().CopyInAndWait(to, from, bytes);
}

absl::Status EmulatedDevice::CopyOut(std::byte* to, const std::byte* from, size_t bytes) {
  return Here().CopyOutAndWait(to, from, bytes);
}

absl::Status EmulatedDevice::CopyWithin(std::byte* to, const std::byte* from, size_t bytes) {
  return Here().CopyFrom(to, *this, from, bytes);
}

absl::Status EmulatedDevice::Synchronize() {
  std::vector<EmulatedStream*> streams;
  {
    QuietLock lock(mutex_);
    for (const std::unique_ptr<EmulatedStream>& stream : streams_) streams.push_back(stream.get());
  }
  for (EmulatedStream* stream : streams) PSD_RETURN_IF_ERROR(stream->WaitForAll());
  CheckRedZones("by Synchronize");
  return health();
}

absl::StatusOr<Stream*> EmulatedDevice::AddStream() {
  return NewStream();
}

absl::StatusOr<EmulatedStream*> EmulatedDevice::NewStream() {
  {
    QuietLock lock(mutex_);
    if (stream_count_ == kMaxStreams) return NoMoreStreams(name());
    ++stream_count_;
  }
  const absl::StatusOr<uint32_t> number = scheduler_->AddStream();
  QuietLock lock(mutex_);
  if (!number.ok()) {
    --stream_count_;
    return number.status();
  }
  streams_.push_back(std::make_unique<EmulatedStream>(
      *this, *number, absl::StrCat("stream ", streams_.size(), " of ", name())));
  return streams_.back().get();
}

size_t EmulatedDevice::used_bytes() const {
  QuietLock lock(mutex_);
  return used_bytes_;
}

absl::Status EmulatedDevice::health() const {
  QuietLock lock(mutex_);
  return lost_.empty() ? absl::OkStatus() : DeviceLost(name(), lost_);
}

size_t EmulatedDevice::BytesToEnd(const void* address) const {
  const auto* const byte = static_cast<const std::byte*>(address);
  QuietLock lock(mutex_);
  const auto behind = living_.upper_bound(byte);
  if (behind == living_.begin()) return 0;
  const auto& [begin, block] = *std::prev(behind);
  return block.size - std::min(block.size, static_cast<size_t>(byte - begin));
}

size_t EmulatedDevice::kernels_launched() const {
  QuietLock lock(mutex_);
  return kernels_launched_;
}

void EmulatedDevice::CountKernel() {
  QuietLock lock(mutex_);
  ++kernels_launched_;
}

size_t EmulatedDevice::copies_added() const {
  QuietLock lock(mutex_);
  return copies_added_;
}

void EmulatedDevice::CountCopy() {
  QuietLock lock(mutex_);
  ++copies_added_;
}

void EmulatedDevice::FailAllocation(int nth) {
  QuietLock lock(mutex_);
  fail_allocation_ = nth;
}

void EmulatedDevice::RefuseOperation(int nth) {
  QuietLock lock(mutex_);
  refuse_operation_ = nth;
}

void EmulatedDevice::FailOperation(int nth) {
  QuietLock lock(mutex_);
  fail_operation_ = nth;
}

void EmulatedDevice::RefuseEvent(int nth) {
  QuietLock lock(mutex_);
  refuse_event_ = nth;
}

void EmulatedDevice::Lose(absl::string_view reason) {
  QuietLock lock(mutex_);
  if (lost_.empty()) lost_ = std::string(reason);
}

absl::StatusOr<StreamPool::Part> EmulatedDevice::Take(uint32_t stream, size_t bytes) {
  const std::vector<StreamPoint> done = scheduler_->Done();
  std::shared_ptr<EmulatedDevice> self;  // dropped without the lock
  QuietLock lock(mutex_);
  // A completion may ask while the destructor waits for it.
  if (blocks_ == 0 && (self = weak_from_this().lock()) == nullptr) return DeviceEnds(name());
  if (HappensNow(fail_allocation_) || bytes > budget_bytes_ - used_bytes_)
    return NoMemory(name(), bytes, budget_bytes_, used_bytes_);
  if (living_.size() - imported_ >= most_blocks_)
    return WithRemedy(absl::ResourceExhaustedError(absl::StrCat(
                          name(), " has ", most_blocks_, " blocks already, which is the most")),
                      "drop values there");
  for (const StreamPoint& point : done) pool_.Passed(point);
  std::optional<StreamPool::Part> part = pool_.Take(DeviceArena::BytesOf(bytes), stream);
  if (!part.has_value())
    return WithRemedy(absl::ResourceExhaustedError(absl::StrCat(
                          name(), " has no ", bytes,
                          " bytes in one piece: the largest free piece of its arena has ",
                          pool_.largest_free_bytes(), " bytes, ", used_bytes_, " of ",
                          budget_bytes_, " bytes are in use")),
                      "drop values there");
  used_bytes_ += bytes;
  if (blocks_++ == 0) self_ = std::move(self);
  living_[arena_->AddressOf(part->offset, bytes)] = {bytes, part->offset, {stream}, 0};
  return *std::move(part);
}

absl::StatusOr<std::shared_ptr<Block>> EmulatedDevice::Allocate(uint32_t stream, size_t bytes) {
  PSD_RETURN_IF_ERROR(health());
  scheduler_->WaitForRoom(stream);
  PSD_ASSIGN_OR_RETURN(StreamPool::Part part, Take(stream, bytes));
  std::byte* const address = arena_->AddressOf(part.offset, bytes);
  scheduler_->Add(
      stream,
      [this, address, bytes] {
        arena_->Open(address, bytes);
        QuietLock lock(mutex_);
        open_[address] = bytes;
      },
      std::move(part.after));
  return std::make_shared<DeviceBlock>(address, bytes, *this);
}

void EmulatedDevice::Free(const std::byte* address) {
  std::shared_ptr<EmulatedDevice> last;  // dropped when all is done here
  Living block;
  uint64_t freed = 0;
  {
    QuietLock lock(mutex_);
    const auto found = living_.find(address);
    block = std::move(found->second);
    living_.erase(found);
    freed = freed_++;
    leaving_[freed] = block.streams.size();
  }
  // No stream waits for another one here, because that would hide missing events.
  std::vector<StreamPoint> after;
  for (const uint32_t stream : block.streams) {
    after.push_back(scheduler_->Add(
        stream, [this, freed, address, size = block.size] { Leave(freed, address, size); }));
  }
  PSD_TSAN_RELEASE(this);
  QuietLock lock(mutex_);
  used_bytes_ -= block.size;
  pool_.Give(block.offset, std::move(after));
  if (--blocks_ == 0) last = std::move(self_);
}

void EmulatedDevice::Leave(uint64_t freed, const std::byte* address, size_t size) {
  arena_->Leave(address, size);
  {
    QuietLock lock(mutex_);
    const auto left = leaving_.find(freed);
    if (--left->second > 0) return;
    leaving_.erase(left);
    open_.erase(address);
  }
  arena_->Close(address, size);
}

const MemoryPlace& EmulatedDevice::place() const {
  return memory_->place();
}

void EmulatedDevice::KeepImported(const std::byte* address, size_t bytes) {
  const uint32_t home = Here().number_;
  QuietLock lock(mutex_);
  if (blocks_++ == 0) self_ = shared_from_this();
  Living& block = living_[address];
  if (block.imports++ == 0) ++imported_;
  block.size = bytes;
  if (!block.UsedBy(home)) block.streams.push_back(home);
}

void EmulatedDevice::DropImported(const std::byte* address, absl::AnyInvocable<void()> then) {
  std::shared_ptr<EmulatedDevice> last;  // dropped when all is done here
  std::vector<uint32_t> streams;
  {
    QuietLock lock(mutex_);
    const auto found = living_.find(address);
    streams = found->second.streams;
    if (--found->second.imports == 0) {
      --imported_;
      living_.erase(found);
    }
  }
  scheduler_->CallBehind(streams, std::move(then));
  PSD_TSAN_RELEASE(this);
  QuietLock lock(mutex_);
  if (--blocks_ == 0) last = std::move(self_);
}

bool EmulatedDevice::Contains(const void* address, size_t bytes) const {
  return arena_->Contains(address, bytes) || sharing_->peers().Contains(address, bytes);
}

std::byte* EmulatedDevice::Inside(const void* address) const {
  if (arena_->Contains(address, 1)) return arena_->Inside(address);
  std::byte* const shared = sharing_->peers().Inside(address);
  PSD_CHECK(shared != nullptr,
            absl::StrCat(name(), ": the operation ", emulated::CurrentOperation(),
                         " used memory of another process that was released"));
  return shared;
}

EmulatedDevice::Living* EmulatedDevice::Find(const Block& block) {
  const auto found = living_.find(block.data());
  return found == living_.end() ? nullptr : &found->second;
}

absl::Status EmulatedDevice::AlsoUses(uint32_t stream, const Block& block) {
  QuietLock lock(mutex_);
  Living* const living = Find(block);
  if (living == nullptr) return UnknownBlock(name(), block);
  if (!living->UsedBy(stream)) living->streams.push_back(stream);
  return absl::OkStatus();
}

absl::Status EmulatedDevice::WaitForUsers(EmulatedStream& stream, const Block& block) {
  std::vector<EmulatedStream*> others;
  {
    QuietLock lock(mutex_);
    Living* const living = Find(block);
    if (living == nullptr) return UnknownBlock(name(), block);
    for (const std::unique_ptr<EmulatedStream>& each : streams_)
      if (each.get() != &stream && living->UsedBy(each->number_)) others.push_back(each.get());
    living->streams.resize(1);
    if (!living->UsedBy(stream.number_)) living->streams.push_back(stream.number_);
  }
  for (EmulatedStream* other : others) stream.WaitForWorkOf(*other);
  return absl::OkStatus();
}

absl::StatusOr<bool> EmulatedDevice::Admit(absl::string_view operation) {
  PSD_RETURN_IF_ERROR(health());
  QuietLock lock(mutex_);
  if (HappensNow(refuse_operation_))
    return absl::InternalError(absl::StrCat(name(), " refused the operation ", operation));
  return HappensNow(fail_operation_);
}

absl::Status EmulatedDevice::AdmitEvent(absl::string_view stream) {
  PSD_RETURN_IF_ERROR(health());
  QuietLock lock(mutex_);
  if (!HappensNow(refuse_event_)) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(name(), " refused to record an event on ", stream));
}

void EmulatedDevice::Run(const std::string& operation, bool fails,
                         absl::AnyInvocable<void()>& run) {
  if (!health().ok()) return;
  if (fails) {
    Lose(absl::StrCat("the operation ", operation, " failed"));
    return;
  }
  {
    const emulated::RunningOperation running(operation);
    run();
  }
  {
    QuietLock lock(mutex_);
    if (open_.size() > kMostCheckedBlocks) return;
  }
  CheckRedZones(absl::StrCat("after the operation ", operation));
}

// The lock keeps the blocks from being closed meanwhile.
void EmulatedDevice::CheckRedZones(const std::string& found) const {
  QuietLock lock(mutex_);
  for (const auto& [address, size] : open_) arena_->CheckRedZones(address, size, found.c_str());
}

}  // namespace psd
