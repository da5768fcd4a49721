#pragma once

// A device for tests, and for developing without a GPU. It finds the mistakes of its users.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/base/buffer.h"
#include "core/base/device.h"
#include "core/base/kernel_table.h"
#include "core/base/memory_place.h"
#include "core/base/mutex.h"
#include "core/base/stream.h"
#include "core/device/emulated/device_arena.h"
#include "core/device/emulated/emulated_sharing.h"
#include "core/device/emulated/emulated_stream.h"
#include "core/device/emulated/pinned_memory.h"
#include "core/device/emulated/quiet_ptr.h"
#include "core/device/emulated/stream_scheduler.h"
#include "core/device/stream_pool.h"

namespace psd {

struct EmulatedDeviceOptions {
  size_t budget_bytes = size_t{64} << 20;  // of each device, unless an EmulatedDeviceSpec has one
  size_t pinned_bytes = size_t{16} << 20;
  // Decides in which order the work of streams runs (core/device/emulated/stream_scheduler.h).
  uint64_t seed = 0;
  KernelTable kernels = {};
  // The most blocks that live at once. Each takes two of the mappings that the system allows a
  // process (vm.max_map_count, 65,530 by default).
  size_t most_blocks = 24'000;
  // Whether other processes may map the memory.
  bool shareable = false;
};

// One of several devices that are created together.
struct EmulatedDeviceSpec {
  int number = 0;  // of its name
  size_t budget_bytes = size_t{64} << 20;
};

// Its memory lies in a DeviceArena, so an access by the host, beyond the end of a block, or before
// or after its life in stream order ends the process. Its streams run late and out of step
// (StreamScheduler), so a missing event gives a wrong result with some seeds and a report of
// ThreadSanitizer. Memory that was allocated and not written reads as NaN. Faults happen on
// request.
class EmulatedDevice : public Device, public std::enable_shared_from_this<EmulatedDevice> {
 public:
  // Returns `count` devices, "emu:0", "emu:1" and so on, whose streams may wait for each other's
  // events. Errors: INVALID_ARGUMENT if there is no device to make, or the options ask for more
  // than 1 TiB or a million blocks; RESOURCE_EXHAUSTED if the system refuses memory or a thread.
  static absl::StatusOr<std::vector<std::shared_ptr<EmulatedDevice>>> Create(
      int count, const EmulatedDeviceOptions& options = {});
  // The same for devices of other numbers and budgets. Requires: no two have the same number.
  static absl::StatusOr<std::vector<std::shared_ptr<EmulatedDevice>>> Create(
      absl::Span<const EmulatedDeviceSpec> specs, const EmulatedDeviceOptions& options);
  // Waits until all work of the devices that were created together is done.
  ~EmulatedDevice() override;

  Allocator& memory() override;
  absl::Status CopyIn(std::byte* to, const std::byte* from, size_t bytes) override;
  absl::Status CopyOut(std::byte* to, const std::byte* from, size_t bytes) override;
  absl::Status CopyWithin(std::byte* to, const std::byte* from, size_t bytes) override;
  absl::Status Synchronize() override;

  EmulatedStream& default_stream() override { return *default_stream_; }
  absl::StatusOr<Stream*> AddStream() override;
  Allocator& pinned_memory() override { return *pinned_; }
  size_t budget_bytes() const override { return budget_bytes_; }
  size_t used_bytes() const override;
  absl::Status health() const override;
  // Work that has not begun is not done any more.
  void Lose(absl::string_view reason) override;
  EmulatedSharing* sharing() override { return sharing_.get(); }

  // The bytes from `address` to the end of its block; 0 if it is in no block that lives.
  size_t BytesToEnd(const void* address) const;
  // How many kernels have been added to the streams.
  size_t kernels_launched() const;
  // How many copies have been added to the streams, in all directions.
  size_t copies_added() const;
  // The most bytes that blocks of pinned memory have had together at any time.
  size_t pinned_peak_bytes() const { return pinned_->peak_bytes(); }
  // The scheduler of the streams of all devices that were created together.
  emulated::StreamScheduler& scheduler() const { return *scheduler_; }

  // ---- Faults, on request. `nth` counts from 1 and from now on.

  // Refuses an allocation, as if the budget were spent.
  void FailAllocation(int nth);
  // Refuses a kernel or copy when it is added. The device goes on.
  void RefuseOperation(int nth);
  // Lets a kernel or copy fail while it runs. It does nothing, and the device is lost.
  void FailOperation(int nth);
  // Refuses to record an event. The device goes on.
  void RefuseEvent(int nth);

 private:
  friend class EmulatedSharing;
  friend class EmulatedStream;
  class DefaultMemory;
  class DeviceBlock;
  struct Living {
    size_t size = 0;
    size_t offset = 0;              // of its part of the pool
    std::vector<uint32_t> streams;  // that use it; the first one has allocated or imported it
    // How many blocks have these bytes of another process. 0 for memory of this device.
    size_t imports = 0;

    bool UsedBy(uint32_t stream) const {
      return std::find(streams.begin(), streams.end(), stream) != streams.end();
    }
  };

  EmulatedDevice(int number, const EmulatedDeviceOptions& options,
                 emulated::QuietPtr<emulated::StreamScheduler> scheduler,
                 std::unique_ptr<emulated::DeviceArena> arena);
  absl::StatusOr<EmulatedStream*> NewStream();
  // The stream for work of this thread.
  EmulatedStream& Here();
  absl::StatusOr<std::shared_ptr<Block>> Allocate(uint32_t stream, size_t bytes);
  absl::StatusOr<StreamPool::Part> Take(uint32_t stream, size_t bytes);
  void Free(const std::byte* address);
  // One of the streams that use the block that was freed as number `freed` has come to its end. The
  // last one closes it.
  void Leave(uint64_t freed, const std::byte* address, size_t size);
  // The place of all blocks of the device.
  const MemoryPlace& place() const;
  emulated::DeviceArena& arena() const { return *arena_; }
  // Notes that there is one block more with these bytes of another process. Requires: the caller
  // keeps the device alive.
  void KeepImported(const std::byte* address, size_t bytes);
  // Takes that back, and calls `then` once behind all work that the streams which use the block
  // have now, on the thread for completions.
  void DropImported(const std::byte* address, absl::AnyInvocable<void()> then);
  // Whether the bytes are in memory of this device, or in memory that it has mapped.
  bool Contains(const void* address, size_t bytes) const;
  // Returns the address for operations. Ends the process if there is none.
  std::byte* Inside(const void* address) const;
  absl::Status AlsoUses(uint32_t stream, const Block& block);
  absl::Status WaitForUsers(EmulatedStream& stream, const Block& block);
  // Returns what is known of the block; null if it is none of this device.
  Living* Find(const Block& block) PSD_REQUIRES(mutex_);
  // Counts an operation that is to be added. Returns whether it will fail, or an error that
  // refuses it.
  absl::StatusOr<bool> Admit(absl::string_view operation);
  // Counts an event that is to be recorded. Returns an error if it is refused.
  absl::Status AdmitEvent(absl::string_view stream);
  void CountKernel();
  void CountCopy();
  void Run(const std::string& operation, bool fails, absl::AnyInvocable<void()>& run);
  void CheckRedZones(const std::string& found) const;

  const size_t budget_bytes_;
  const size_t most_blocks_;
  const emulated::QuietPtr<emulated::StreamScheduler> scheduler_;  // shared by devices and events
  const std::unique_ptr<emulated::DeviceArena> arena_;
  const std::unique_ptr<emulated::PinnedMemory> pinned_;
  const std::unique_ptr<DefaultMemory> memory_;
  const std::unique_ptr<EmulatedSharing> sharing_;
  EmulatedStream* default_stream_ = nullptr;

  mutable Mutex mutex_;                             // leaf
  size_t stream_count_ PSD_GUARDED_BY(mutex_) = 0;  // with those that are being made
  std::vector<std::unique_ptr<EmulatedStream>> streams_ PSD_GUARDED_BY(mutex_);
  StreamPool pool_ PSD_GUARDED_BY(mutex_);
  size_t used_bytes_ PSD_GUARDED_BY(mutex_) = 0;
  // The blocks that are not yet freed to the end, which keep the device alive. One reference for
  // all of them: a reference for each would order the threads that free them.
  size_t blocks_ PSD_GUARDED_BY(mutex_) = 0;
  std::shared_ptr<EmulatedDevice> self_ PSD_GUARDED_BY(mutex_);       // null if there are no blocks
  std::map<const std::byte*, Living> living_ PSD_GUARDED_BY(mutex_);  // in the order of the host
  size_t imported_ PSD_GUARDED_BY(mutex_) = 0;  // how many of these are of other processes
  std::map<const std::byte*, size_t> open_ PSD_GUARDED_BY(mutex_);  // in the order of streams
  uint64_t freed_ PSD_GUARDED_BY(mutex_) = 0;                       // numbers the freed blocks
  size_t kernels_launched_ PSD_GUARDED_BY(mutex_) = 0;
  size_t copies_added_ PSD_GUARDED_BY(mutex_) = 0;
  // How many streams have not yet come to the end of a freed block, by its number.
  std::map<uint64_t, size_t> leaving_ PSD_GUARDED_BY(mutex_);
  std::string lost_ PSD_GUARDED_BY(mutex_);         // the reason; empty if the device is not lost
  int fail_allocation_ PSD_GUARDED_BY(mutex_) = 0;  // counts down to the fault; 0 for none
  int refuse_operation_ PSD_GUARDED_BY(mutex_) = 0;
  int fail_operation_ PSD_GUARDED_BY(mutex_) = 0;
  int refuse_event_ PSD_GUARDED_BY(mutex_) = 0;
};

}  // namespace psd
