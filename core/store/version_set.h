#pragma once

// The buffers of one parameter and who holds them: a plain state machine, without lock or memory
// of its own.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "core/base/buffer.h"

namespace psd::store {

class VersionPin;

// Old versions that may stay pinned.
inline constexpr int kMaxOldPinned = 2;

// Buffers up to this size stay when they were reserved for a pin that has gone: to allocate one
// anew for each pin of a small parameter costs more than all else in it.
inline constexpr size_t kSmallBufferBytes = size_t{16} << 10;

// Confined to the holder of the parameter's VersionLock. Methods that could free a buffer hand it
// out instead, so that it is freed without the lock.
class VersionSet {
 public:
  using BlockPtr = std::shared_ptr<Block>;
  using Blocks = absl::InlinedVector<BlockPtr, 2>;

  explicit VersionSet(BlockPtr first) { current_.block = std::move(first); }

  uint64_t version() const { return current_.number; }
  const BlockPtr& current() const { return current_.block; }
  int spares() const { return static_cast<int>(spares_.size()); }
  int old_pinned() const;
  // All buffers: current, spare, being written, old.
  int buffers() const;
  bool acquired() const { return acquirers_ > 0; }

  // What a reader must do to read the current version.
  enum class Access {
    kPin,      // pin it: all that it takes is reserved
    kReserve,  // bring a buffer for one more spare, then ask again
    kCopy,     // copy it: too many old versions are pinned
  };
  Access AccessForPin() const;

  // The live pin of the current version, if any, for readers to share.
  std::weak_ptr<VersionPin> pin;
  // Counts a new pin of the current version. Requires: AccessForPin() is kPin.
  void AddPin() { ++current_.pins; }
  // A holder of `version` let go.
  Blocks DropPin(uint64_t version);

  // Holds the current version's buffer while it is copied, without a reservation.
  void AddCopier() { ++current_.copiers; }
  Blocks DropCopier(uint64_t version);

  // Spares that are missing for one optimizer more.
  int MissingForAcquire() const;
  void Acquire() { ++acquirers_; }
  Blocks Release();
  // Adds a reserved buffer, to be used after those that are warm.
  void AddSpare(BlockPtr block) { spares_.insert(spares_.begin(), std::move(block)); }
  // Frees spares beyond what the rules ask for.
  Blocks Trim();

  // False while all spares wait for a copier.
  bool CanBeginWrite() const { return !spares_.empty(); }
  // The buffer to write. Requires: CanBeginWrite(), no write under way.
  const BlockPtr& BeginWrite();
  void AbandonWrite();
  // The written buffer becomes the current version.
  Blocks Publish() { return Replace(std::exchange(writing_, nullptr)); }
  // `next` becomes the current version.
  Blocks Replace(BlockPtr next);

 private:
  struct Version {
    uint64_t number = 1;
    BlockPtr block;
    int pins = 0;
    int copiers = 0;
  };

  // Spares that must be there (one being written counts) when the current version is pinned or
  // not.
  int Needed(bool current_pinned) const { return acquired() ? 1 + (current_pinned ? 1 : 0) : 0; }
  // Spares that are not freed: those needed, and for small buffers one for the next pin.
  int Kept() const;
  // Spares, the one being written, and those that come back when a copier is done.
  int Available() const;
  Version& Find(uint64_t version);
  // Recycles the buffer of `version` if it is old and nobody holds it any more.
  Blocks Settle(uint64_t version);

  Version current_;
  absl::InlinedVector<Version, 2> old_;  // with pins or copiers
  Blocks spares_;                        // the coldest first
  BlockPtr writing_;
  int acquirers_ = 0;
};

}  // namespace psd::store
