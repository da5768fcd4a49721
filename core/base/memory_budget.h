#pragma once

// How much memory one worker may take, in two accounts. Hosted memory holds values, versions and
// optimizer state. Memory in transit holds everything else that peers can make a worker keep:
// messages, gradients in contexts, results of programs, copies for readers.
//
//   budget  |------------ hosted: at most 3/4 -----------|
//           |------------------- hosted and transit: at most 7/8 -------------|   the rest   |
//
// Transit may use what hosted memory leaves, so it always has an eighth. The rest is for what is
// resident and in no account: buffers of the network library, and freed memory that is kept for
// reuse.

#include <cstddef>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/buffer.h"

namespace psd {

// Bytes charged to an account; credited when the last copy goes. Null: nothing.
using MemoryCharge = std::shared_ptr<const void>;

// An allocator that charges what it gives to an account and credits it when the block goes.
// Thread-safe.
class MemoryAccount : public Allocator {
 public:
  // An account with a limit that it shares with no other. 0: no limit, use is counted all the same.
  static std::shared_ptr<MemoryAccount> Create(size_t limit_bytes,
                                               std::shared_ptr<Allocator> underlying);

  // Errors: RESOURCE_EXHAUSTED naming need, budget and use; what the underlying allocator says.
  absl::StatusOr<std::shared_ptr<Block>> Allocate(size_t bytes) override = 0;

  // For memory that comes from elsewhere. Errors: RESOURCE_EXHAUSTED, as above.
  virtual absl::StatusOr<MemoryCharge> Charge(size_t bytes) = 0;

  // Takes over the charge of the block at `storage` from another account of the same budget, and
  // returns its size. 0 if that is no such block of at least kMovableBytes, or is charged here
  // already. Errors: RESOURCE_EXHAUSTED, as above; the charge stays where it was.
  virtual absl::StatusOr<size_t> TakeOver(const void* storage) = 0;

  // The most that this account may take when no other takes anything; 0: no limit.
  virtual size_t limit_bytes() const = 0;
  virtual size_t used_bytes() const = 0;
};

// Blocks of at least this size can change their account.
inline constexpr size_t kMovableBytes = size_t{64} << 10;

// The accounts of one worker. Thread-safe; blocks and charges may outlive it.
class MemoryBudget {
 public:
  // `limit_bytes` 0: no limit. Freed blocks in transit are kept for the next ones, up to a
  // sixteenth of the limit and to 512 MiB: a block of fresh memory costs its writer half as much
  // time again.
  static std::shared_ptr<MemoryBudget> Create(size_t limit_bytes);

  size_t limit_bytes() const { return limit_bytes_; }
  const std::shared_ptr<MemoryAccount>& hosted() const { return hosted_; }
  const std::shared_ptr<MemoryAccount>& transit() const { return transit_; }
  // Transit for messages that must not wait. A thirty-second of the budget is left to them, so
  // that small calls are taken while large transfers find no room.
  const std::shared_ptr<MemoryAccount>& essential() const { return essential_; }

 private:
  MemoryBudget() = default;

  size_t limit_bytes_ = 0;
  // Shared with the layers that draw on them.
  std::shared_ptr<MemoryAccount> hosted_;
  std::shared_ptr<MemoryAccount> transit_;
  std::shared_ptr<MemoryAccount> essential_;
};

}  // namespace psd
