#pragma once

// The buffers of one parameter and who holds them: a plain state machine, without lock or memory
// of its own.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/container/inlined_vector.h"

namespace psd::store {

// Old versions that may stay pinned.
inline constexpr int kMaxOldPinned = 2;

// Buffers up to this size stay when they were reserved for a pin that has gone: to allocate one
// anew for each pin of a small parameter costs more than all else in it.
inline constexpr size_t kSmallBufferBytes = size_t{16} << 10;

// Confined to the holder of the parameter's VersionLock. Methods that could free a buffer append it
// to `freed` instead, so that it is freed without the lock.
class VersionSet {
 public:
  // Where the elements are; it owns the block in which they lie.
  using BufferPtr = std::shared_ptr<std::byte>;
  using Buffers = absl::InlinedVector<BufferPtr, 2>;

  // All buffers have `bytes` bytes.
  VersionSet(BufferPtr first, size_t bytes) : small_(bytes <= kSmallBufferBytes) {
    current_.buffer = std::move(first);
  }

  uint64_t version() const { return current_.number; }
  const std::byte* current() const { return current_.buffer.get(); }
  int spares() const { return static_cast<int>(spares_.size()); }
  int old_pinned() const;
  // All buffers: current, spare, being written, old.
  int buffers() const { return 1 + spares() + writing() + static_cast<int>(old_.size()); }
  bool acquired() const { return acquirers_ > 0; }

  // What a reader must do to read the current version.
  enum class Access {
    kPin,      // pin it: all that it takes is reserved
    kReserve,  // bring a buffer for one more spare, then ask again
    kCopy,     // copy it: too many old versions are pinned
  };
  Access AccessForPin() const {
    if (current_.pins > 0) return Access::kPin;
    if (!old_.empty() && old_pinned() >= kMaxOldPinned) return Access::kCopy;
    return Available() < Needed(true) ? Access::kReserve : Access::kPin;
  }
  // Counts a pin of the current version. Requires: AccessForPin() is kPin.
  void AddPin() { ++current_.pins; }
  // A pin of `version` goes.
  void DropPin(uint64_t version, Buffers& freed) {
    --Find(version).pins;
    Settle(version, freed);
  }

  // Holds the current version's buffer while it is copied, without a reservation.
  void AddCopier() { ++current_.copiers; }
  void DropCopier(uint64_t version, Buffers& freed) {
    --Find(version).copiers;
    Settle(version, freed);
  }

  // Spares that are missing for one optimizer more.
  int MissingForAcquire() const;
  void Acquire() { ++acquirers_; }
  void Release(Buffers& freed);
  // Adds a reserved buffer, to be used after those that are warm.
  void AddSpare(BufferPtr buffer) { spares_.insert(spares_.begin(), std::move(buffer)); }

  // False while all spares wait for a copier.
  bool CanBeginWrite() const { return !spares_.empty(); }
  // The buffer to write. Requires: CanBeginWrite(), no write under way.
  std::byte* BeginWrite();
  void AbandonWrite() { spares_.push_back(std::exchange(writing_, nullptr)); }
  // The written buffer becomes the current version.
  void Publish(Buffers& freed) { Replace(std::move(writing_), freed); }
  // `next` becomes the current version.
  void Replace(BufferPtr&& next, Buffers& freed);

  // The parameter is gone: what nobody holds is freed, and nothing but drops may follow.
  void Close(Buffers& freed);

 private:
  struct Version {
    uint64_t number = 1;
    BufferPtr buffer;
    int pins = 0;
    int copiers = 0;

    bool held() const { return pins > 0 || copiers > 0; }
  };

  int writing() const { return writing_ != nullptr ? 1 : 0; }
  // Spares that must be there (one being written counts) when the current version is pinned or
  // not.
  int Needed(bool current_pinned) const { return acquired() ? 1 + (current_pinned ? 1 : 0) : 0; }
  // Spares that are not freed: those needed, and for small buffers one for the next pin.
  int Kept() const { return Needed(current_.pins > 0 || small_); }
  // Spares, the one being written, and those that come back when a copier is done.
  int Available() const { return spares() + writing() + (old_.empty() ? 0 : ComingBack()); }
  int ComingBack() const { return static_cast<int>(old_.size()) - old_pinned(); }
  Version& Find(uint64_t version) {
    return version == current_.number ? current_ : *FindOld(version);
  }
  Version* FindOld(uint64_t version);
  // A holder of `version` has gone.
  void Settle(uint64_t version, Buffers& freed) {
    if (version != current_.number) Recycle(version);
    Trim(freed);
  }
  // The buffer of an old version that nobody holds any more becomes a spare.
  void Recycle(uint64_t version);
  // Frees spares beyond what the rules ask for.
  void Trim(Buffers& freed) {
    if (!spares_.empty() && Available() > Kept()) FreeSpares(freed);
  }
  void FreeSpares(Buffers& freed);

  Version current_;
  Buffers spares_;  // the coldest first
  BufferPtr writing_;
  int acquirers_ = 0;
  const bool small_;
  absl::InlinedVector<Version, 2> old_;  // with pins or copiers
};

}  // namespace psd::store
