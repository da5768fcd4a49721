#pragma once

// The memory budget of a worker, in two accounts. Hosted memory holds values, versions and
// optimizer state. Memory in transit holds everything else that peers can make a worker keep:
// messages, gradients in contexts, results of programs, copies for readers.
//
//   budget  |------------ hosted: at most 3/4 -----------|
//           |------------------- hosted and transit: at most 7/8 -------------|   the rest   |
//
// Transit may use what hosted memory leaves, so it always has at least an eighth of the budget. The
// rest is for resident memory in no account: buffers of the network library, and freed memory that
// is kept for reuse.

#include <cstddef>
#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/base/buffer.h"
#include "core/base/small_charges.h"

namespace psd {

// A handle to bytes that are charged to an account. The bytes are credited when the last copy is
// destroyed. Null if there is no charge.
using MemoryCharge = std::shared_ptr<const void>;

namespace internal {
enum class AccountKind { kHosted, kTransit };
struct Meters;
}  // namespace internal

// An allocator that charges its blocks to an account, and credits a block when it is destroyed.
// Thread-safe.
class MemoryAccount : public Allocator {
 public:
  // Returns an account with a limit of its own. With 0 there is no limit, but use is counted.
  static std::shared_ptr<MemoryAccount> Create(size_t limit_bytes,
                                               std::shared_ptr<Allocator> underlying);

  // Errors: RESOURCE_EXHAUSTED naming need, budget and use; the errors of the underlying allocator.
  absl::StatusOr<std::shared_ptr<Block>> Allocate(size_t bytes) override;
  void ReleaseUnused() override { underlying_->ReleaseUnused(); }

  // Charges memory that comes from elsewhere. Errors: RESOURCE_EXHAUSTED, as for Allocate.
  absl::StatusOr<MemoryCharge> Charge(size_t bytes);

  // Whether `storage` is a block of this budget with at least kMovableBytes. Such a block is
  // charged to one of the budget's accounts for as long as it lives.
  bool Counts(const void* storage) const;
  // Takes over the charges of those blocks that another account of the same budget has. Pointers
  // for which Counts is false are ignored. Errors: RESOURCE_EXHAUSTED, as for Allocate; then the
  // other account keeps all charges.
  absl::Status TakeOver(absl::Span<const void* const> storages);

  // The bytes that this account may use if no other uses any; 0 means no limit.
  size_t limit_bytes() const;
  // The most bytes that this account can use besides the values that are hosted now. A message that
  // needs more would wait without end, because hosted values do not make room for it.
  size_t most_bytes() const;
  size_t used_bytes() const;

  // The account to which small pieces are charged (small_charges.h). 0 if small pieces are not
  // charged, which holds for an account of its own and for one without a limit.
  SmallChargesId small_charges() const { return small_charges_; }

 private:
  friend class MemoryBudget;
  MemoryAccount(std::shared_ptr<internal::Meters> meters, internal::AccountKind kind,
                size_t own_limit, size_t limit_of_all, std::shared_ptr<Allocator> underlying,
                SmallChargesId small_charges);
  absl::Status Add(size_t bytes);

  const std::shared_ptr<internal::Meters> meters_;  // shared by the accounts of one budget
  const internal::AccountKind kind_;
  const size_t own_limit_;
  const size_t limit_of_all_;
  const std::shared_ptr<Allocator> underlying_;  // shared with its creator
  const SmallChargesId small_charges_;
};

// Blocks of at least this size can change their account.
inline constexpr size_t kMovableBytes = size_t{64} << 10;

// The accounts of one worker. Thread-safe. Blocks and charges may outlive the budget.
class MemoryBudget {
 public:
  // Returns an allocator that keeps up to `cache_bytes` of freed memory for reuse.
  using AllocatorSource = absl::FunctionRef<std::shared_ptr<Allocator>(size_t cache_bytes)>;

  // A `limit_bytes` of 0 means no limit. Freed blocks are kept for reuse, up to a sixteenth of the
  // limit and at most 512 MiB, because writing to a block of fresh memory takes 50 % more time: the
  // buffers of messages, and the spare that a parameter reserves for each pull and frees after each
  // step. The memory comes from an allocator of `source`; without one it is ordinary process
  // memory.
  static std::shared_ptr<MemoryBudget> Create(size_t limit_bytes);
  static std::shared_ptr<MemoryBudget> Create(size_t limit_bytes, AllocatorSource source);

  size_t limit_bytes() const { return limit_bytes_; }
  const std::shared_ptr<MemoryAccount>& hosted() const { return hosted_; }
  const std::shared_ptr<MemoryAccount>& transit() const { return transit_; }
  // The account for messages in transit that must not wait. A thirty-second of the budget is
  // reserved for them, so that small calls are accepted while large transfers find no room.
  const std::shared_ptr<MemoryAccount>& essential() const { return essential_; }

  // See Allocator::ReleaseUnused.
  void ReleaseUnused() { transit_->ReleaseUnused(); }

 private:
  MemoryBudget() = default;

  size_t limit_bytes_ = 0;
  // Shared with the layers that allocate from it.
  std::shared_ptr<MemoryAccount> hosted_;
  std::shared_ptr<MemoryAccount> transit_;
  std::shared_ptr<MemoryAccount> essential_;
};

}  // namespace psd
