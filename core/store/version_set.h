#pragma once

// The buffers of one parameter and the counts of their readers, as a plain state machine without a
// lock.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "core/base/buffer.h"
#include "core/base/shared_segment.h"
#include "core/base/stream.h"

namespace psd::store {

// The most old versions that may be pinned.
inline constexpr int kMaxOldPinned = 2;

// If a spare of at most this size was reserved for a pin, it is kept when the pin is dropped: for a
// small parameter, allocating a new one for each pin would cost more than the rest of the pin.
inline constexpr size_t kSmallBufferBytes = size_t{16} << 10;

// One buffer of a parameter: the block with its identity, and the address of its elements. The
// address is stored here too, so that a step need not look into the block.
struct VersionBuffer {
  VersionBuffer() = default;
  explicit VersionBuffer(std::shared_ptr<Block> memory)
      : block(std::move(memory)), data(block->data()) {}

  explicit operator bool() const { return block != nullptr; }

  std::shared_ptr<Block> block;  // not shared; null if there is no buffer
  std::byte* data = nullptr;
};

using VersionBuffers = absl::InlinedVector<VersionBuffer, 2>;

// What VersionSets hold no more. May be destroyed without their lock.
struct FreedVersions {
  VersionBuffers buffers;
  absl::InlinedVector<std::shared_ptr<Event>, 1> events;

  // The versions of one step share their event, which is kept once.
  void Add(std::shared_ptr<Event> event) {
    if (event != nullptr && (events.empty() || events.back() != event))
      events.push_back(std::move(event));
  }
};

// All calls must be made under the parameter's VersionLock. Methods that would free a buffer or an
// event append it to `freed` instead, so that the caller frees it after the lock is released.
class VersionSet {
 public:
  // `bytes` is the size of every buffer.
  VersionSet(VersionBuffer first, size_t bytes)
      : small_(bytes <= kSmallBufferBytes), on_device_(first.block->place().device() != nullptr) {
    current_.buffer = std::move(first);
  }

  bool on_device() const { return on_device_; }
  uint64_t version() const { return current_.number; }
  const VersionBuffer& current() const { return current_.buffer; }
  // The event behind the work that writes the current version. Null if nobody needs to wait for it,
  // as always on the host.
  const std::shared_ptr<Event>& written() const { return written_; }
  int spares() const { return static_cast<int>(spares_.size()); }
  int old_pinned() const;
  // The number of all buffers: current, spare, being written and old.
  int buffers() const { return 1 + spares() + writing() + static_cast<int>(old_.size()); }
  bool acquired() const { return acquirers_ > 0; }

  // How a reader gets the current version.
  enum class Access {
    kPin,      // pin it; the buffers that this may need are reserved
    kReserve,  // allocate one more spare, then ask again
    kCopy,     // copy it, because too many old versions are pinned
  };
  Access AccessForPin() const {
    if (current_.pins > 0) return Access::kPin;
    if (!old_.empty() && old_pinned() >= kMaxOldPinned) return Access::kCopy;
    return Available() < Needed(true) ? Access::kReserve : Access::kPin;
  }
  // Counts a pin of the current version. Requires: AccessForPin() is kPin.
  void AddPin() { ++current_.pins; }
  // Drops a pin of `version`.
  void DropPin(uint64_t version, FreedVersions& freed) {
    --Find(version).pins;
    Settle(version, freed);
  }

  // Holds the current version's buffer while it is copied. Needs no reserved spare.
  void AddCopier() { ++current_.copiers; }
  void DropCopier(uint64_t version, FreedVersions& freed) {
    --Find(version).copiers;
    Settle(version, freed);
  }

  // The number of spares that are missing for one more optimizer.
  int MissingForAcquire() const;
  void Acquire() { ++acquirers_; }
  void Release(FreedVersions& freed);
  // Adds a new spare. It is used only after the others, which may still be in the caches.
  void AddSpare(VersionBuffer buffer) { spares_.insert(spares_.begin(), std::move(buffer)); }

  // Whether the spare that a write would use may be written. It may not if its segment is retired,
  // and there is none while a reader still copies it.
  bool CanBeginWrite() const { return !spares_.empty() && (small_ || IsWritable(spares_.back())); }
  // Whether a spare will come back when a reader has copied it. Requires: no write is under way.
  bool AwaitsSpare() const { return !old_.empty() && ComingBack() > 0; }
  // Frees the spares whose segments are retired. Afterwards there may be too few.
  void DropRetired(FreedVersions& freed);
  // Returns the buffer to write. Requires: CanBeginWrite(), and no write is under way.
  const VersionBuffer& BeginWrite();
  void AbandonWrite() { spares_.push_back(std::exchange(writing_, {})); }
  // Makes the buffer that is written the current version. `written` is the event behind the work
  // that writes it; null if it is written.
  void Publish(const std::shared_ptr<Event>& written, FreedVersions& freed) {
    Replace(std::move(writing_), freed);
    if (on_device_) written_ = written;  // nothing is freed here: it was null
  }
  // Makes `next`, which is written, the current version.
  void Replace(VersionBuffer&& next, FreedVersions& freed);

  // Called when the parameter is destroyed: frees all buffers without readers. Only DropPin and
  // DropCopier may follow.
  void Close(FreedVersions& freed);

 private:
  struct Version {
    uint64_t number = 1;
    VersionBuffer buffer;
    int pins = 0;
    int copiers = 0;

    bool held() const { return pins > 0 || copiers > 0; }
  };

  static bool IsWritable(const VersionBuffer& spare) {
    const SharedSegment* const segment = spare.block->place().segment();
    return segment == nullptr || !segment->retired();
  }
  int writing() const { return writing_ ? 1 : 0; }
  // The number of spares that must exist, including one that is being written, depending on whether
  // the current version is pinned.
  int Needed(bool current_pinned) const { return acquired() ? 1 + (current_pinned ? 1 : 0) : 0; }
  // The number of spares that are not freed: the needed ones, and for small buffers one for the
  // next pin.
  int Kept() const { return Needed(current_.pins > 0 || small_); }
  // The number of spares, including the one that is being written and those that return when a
  // copier is done.
  int Available() const { return spares() + writing() + (old_.empty() ? 0 : ComingBack()); }
  int ComingBack() const { return static_cast<int>(old_.size()) - old_pinned(); }
  Version& Find(uint64_t version) {
    return version == current_.number ? current_ : *FindOld(version);
  }
  Version* FindOld(uint64_t version);
  // To be called after a pin or copier of `version` was dropped.
  void Settle(uint64_t version, FreedVersions& freed) {
    if (version != current_.number) Recycle(version);
    Trim(freed);
  }
  // Makes the buffer of an old version a spare if nobody holds it any more.
  void Recycle(uint64_t version);
  // Frees spares beyond the number that is kept.
  void Trim(FreedVersions& freed) {
    if (!spares_.empty() && Available() > Kept()) FreeSpares(freed);
  }
  void FreeSpares(FreedVersions& freed);

  // In this order, all that a pin and a step read lies before the storage of old_.
  int acquirers_ = 0;
  const bool small_;
  const bool on_device_;
  Version current_;
  VersionBuffer writing_;
  VersionBuffers spares_;                // in the order of their latest use; the last is used first
  absl::InlinedVector<Version, 2> old_;  // those that still have pins or copiers
  std::shared_ptr<Event> written_;       // shared with readers; the host never looks at it
};

}  // namespace psd::store
