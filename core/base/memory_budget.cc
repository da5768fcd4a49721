#include "core/base/memory_budget.h"

#include <algorithm>
#include <atomic>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "core/base/mutex.h"
#include "core/base/remedy.h"
#include "core/base/small_memory.h"
#include "core/base/status.h"

namespace psd {
namespace internal {

// Counts bytes in use; the caller gives the limit. Thread-safe.
class Meter {
 public:
  bool TryAdd(size_t bytes, size_t limit) {
    size_t used = used_.load(std::memory_order_relaxed);
    do {
      const size_t now = NotBelowZero(used);
      if (now > limit || bytes > limit - now) return false;
    } while (!used_.compare_exchange_weak(used, used + bytes, std::memory_order_relaxed));
    return true;
  }
  void Add(size_t bytes) { used_.fetch_add(bytes, std::memory_order_relaxed); }
  void Subtract(size_t bytes) { used_.fetch_sub(bytes, std::memory_order_relaxed); }
  size_t used() const { return NotBelowZero(used_.load(std::memory_order_relaxed)); }

 private:
  // One thread may credit small pieces before another one has moved what it charged for them.
  static size_t NotBelowZero(size_t used) { return static_cast<int64_t>(used) < 0 ? 0 : used; }

  std::atomic<size_t> used_{0};
};

class ChargedBlock;

// The counts that the accounts of one budget share. `all` counts every charge; `hosted` counts
// hosted memory once more, by itself. A charge in transit therefore costs one locked instruction.
struct Meters {
  explicit Meters(size_t budget_bytes) : budget_bytes(budget_bytes) {}

  // `for_values` is the limit of hosted memory, `limit` that of all memory. Errors:
  // RESOURCE_EXHAUSTED.
  absl::Status TryAdd(AccountKind kind, size_t bytes, size_t for_values, size_t limit);
  void Credit(AccountKind kind, size_t bytes) {
    all.Subtract(bytes);
    if (kind == AccountKind::kHosted) hosted.Subtract(bytes);
  }
  size_t transit_bytes() const {
    const size_t both = all.used();
    return both - std::min(both, hosted.used());
  }

  const size_t budget_bytes;  // 0 means no limit
  Meter all;
  Meter hosted;

  Mutex mutex;  // leaf
  // The blocks of at least kMovableBytes.
  absl::flat_hash_map<const void*, ChargedBlock*> movable PSD_GUARDED_BY(mutex);
};

// `for_values` is the limit of the account for values.
absl::Status Refusal(const Meters& meters, AccountKind kind, size_t for_values, size_t bytes) {
  const std::string use = absl::StrCat(
      "no memory for ", bytes, " bytes more: the budget is ", meters.budget_bytes, " bytes",
      for_values < meters.budget_bytes ? absl::StrCat(" (", for_values, " for values)") : "",
      ", of which ", meters.hosted.used(), " are in use by values and ", meters.transit_bytes(),
      " by messages, gradients and results under way");
  return WithRemedy(absl::ResourceExhaustedError(use),
                    kind == AccountKind::kHosted
                        ? "drop values or raise the budget"
                        : "try again when calls have ended, send less at once, or raise the "
                          "budget");
}

absl::Status Meters::TryAdd(AccountKind kind, size_t bytes, size_t for_values, size_t limit) {
  if (!all.TryAdd(bytes, limit)) return Refusal(*this, kind, for_values, bytes);
  if (kind == AccountKind::kTransit || hosted.TryAdd(bytes, for_values)) return absl::OkStatus();
  all.Subtract(bytes);
  return Refusal(*this, kind, for_values, bytes);
}

// The account of small pieces in transit.
class SmallTransit : public SmallCharges {
 public:
  SmallTransit(std::shared_ptr<Meters> meters, size_t for_values, size_t limit, size_t modest_limit)
      : meters_(std::move(meters)),
        for_values_(for_values),
        limit_(limit),
        modest_limit_(modest_limit) {}

  absl::Status Take(size_t bytes, bool modest) override {
    if (meters_->all.TryAdd(bytes, modest ? modest_limit_ : limit_)) return absl::OkStatus();
    return Refusal(*meters_, AccountKind::kTransit, for_values_, bytes);
  }
  void Add(size_t bytes) override { meters_->all.Add(bytes); }
  void Credit(size_t bytes) override { meters_->Credit(AccountKind::kTransit, bytes); }

 private:
  const std::shared_ptr<Meters> meters_;  // shared with the accounts
  const size_t for_values_;
  const size_t limit_;
  const size_t modest_limit_;  // for work that has taken little so far
};

// The account of small pieces that have become hosted values.
class SmallHosted : public SmallCharges {
 public:
  SmallHosted(std::shared_ptr<Meters> meters, size_t for_values, size_t limit)
      : meters_(std::move(meters)), for_values_(for_values), limit_(limit) {}

  absl::Status Take(size_t bytes, bool /*modest*/) override {
    return meters_->TryAdd(AccountKind::kHosted, bytes, for_values_, limit_);
  }
  void Add(size_t bytes) override {
    meters_->all.Add(bytes);
    meters_->hosted.Add(bytes);
  }
  void Credit(size_t bytes) override { meters_->Credit(AccountKind::kHosted, bytes); }

 private:
  const std::shared_ptr<Meters> meters_;  // shared with the accounts
  const size_t for_values_;
  const size_t limit_;
};

class ChargedBlock : public Block {
 public:
  ChargedBlock(std::shared_ptr<Block> block, std::shared_ptr<Meters> meters, AccountKind kind)
      : Block(block->data(), block->size(), block->place(), block->offset()),
        block_(std::move(block)),
        meters_(std::move(meters)),
        kind_(kind) {
    if (!movable()) return;
    MutexLock lock(meters_->mutex);
    meters_->movable.emplace(static_cast<Block*>(this), this);
  }
  ~ChargedBlock() override {
    if (movable()) {
      MutexLock lock(meters_->mutex);
      meters_->movable.erase(static_cast<Block*>(this));
    }
    block_.reset();  // before the credit, so that credited memory is really free
    meters_->Credit(kind_, size());
  }

  // Requires: the meters' mutex is held.
  AccountKind kind() const { return kind_; }
  void set_kind(AccountKind kind) { kind_ = kind; }

 private:
  bool movable() const { return size() >= kMovableBytes; }

  std::shared_ptr<Block> block_;
  const std::shared_ptr<Meters> meters_;  // shared by the accounts, live blocks and charges
  AccountKind kind_;                      // changes under the meters' mutex
};

}  // namespace internal

namespace {

constexpr size_t kMaxKeptBytes = size_t{512} << 20;

}  // namespace

using internal::AccountKind;
using internal::ChargedBlock;
using internal::Meters;
using internal::Refusal;

std::shared_ptr<MemoryAccount> MemoryAccount::Create(size_t limit_bytes,
                                                     std::shared_ptr<Allocator> underlying) {
  const size_t bound = limit_bytes == 0 ? SIZE_MAX : limit_bytes;
  return std::shared_ptr<MemoryAccount>(
      new MemoryAccount(std::make_shared<Meters>(limit_bytes), AccountKind::kHosted, bound, bound,
                        std::move(underlying), /*small_charges=*/0));
}

MemoryAccount::MemoryAccount(std::shared_ptr<Meters> meters, AccountKind kind, size_t own_limit,
                             size_t limit_of_all, std::shared_ptr<Allocator> underlying,
                             SmallChargesId small_charges)
    : meters_(std::move(meters)),
      kind_(kind),
      own_limit_(own_limit),
      limit_of_all_(limit_of_all),
      underlying_(std::move(underlying)),
      small_charges_(small_charges) {}

absl::StatusOr<std::shared_ptr<Block>> MemoryAccount::Allocate(size_t bytes) {
  PSD_RETURN_IF_ERROR(Add(bytes));
  absl::StatusOr<std::shared_ptr<Block>> block = underlying_->Allocate(bytes);
  if (!block.ok()) {
    meters_->Credit(kind_, bytes);
    return block.status();
  }
  return std::allocate_shared<ChargedBlock>(SmallMemoryAllocator<ChargedBlock>(), *std::move(block),
                                            meters_, kind_);
}

absl::StatusOr<MemoryCharge> MemoryAccount::Charge(size_t bytes) {
  if (bytes == 0) return MemoryCharge();
  PSD_RETURN_IF_ERROR(Add(bytes));
  return MemoryCharge(meters_.get(), [meters = meters_, kind = kind_, bytes](const void*) {
    meters->Credit(kind, bytes);
  });
}

bool MemoryAccount::Counts(const void* storage) const {
  MutexLock lock(meters_->mutex);
  return meters_->movable.contains(storage);
}

absl::Status MemoryAccount::TakeOver(absl::Span<const void* const> storages) {
  MutexLock lock(meters_->mutex);
  absl::flat_hash_set<ChargedBlock*> others;
  size_t bytes = 0;
  for (const void* storage : storages) {
    const auto found = meters_->movable.find(storage);
    if (found == meters_->movable.end() || found->second->kind() == kind_) continue;
    if (others.insert(found->second).second) bytes += found->second->size();
  }
  if (kind_ == AccountKind::kTransit) {
    meters_->hosted.Subtract(bytes);
  } else if (!meters_->hosted.TryAdd(bytes, own_limit_)) {
    return Refusal(*meters_, kind_, own_limit_, bytes);
  }
  for (ChargedBlock* block : others) block->set_kind(kind_);
  return absl::OkStatus();
}

size_t MemoryAccount::limit_bytes() const {
  if (meters_->budget_bytes == 0) return 0;
  return kind_ == AccountKind::kHosted ? own_limit_ : limit_of_all_;
}

size_t MemoryAccount::most_bytes() const {
  const size_t hosted = std::min(meters_->hosted.used(), limit_of_all_);
  return kind_ == AccountKind::kHosted ? own_limit_ : limit_of_all_ - hosted;
}

size_t MemoryAccount::used_bytes() const {
  return kind_ == AccountKind::kHosted ? meters_->hosted.used() : meters_->transit_bytes();
}

absl::Status MemoryAccount::Add(size_t bytes) {
  return meters_->TryAdd(kind_, bytes, own_limit_, limit_of_all_);
}

std::shared_ptr<MemoryBudget> MemoryBudget::Create(size_t limit_bytes) {
  return Create(limit_bytes, [](size_t cache_bytes) {
    HeapAllocatorOptions heap;
    heap.cache_bytes = cache_bytes;
    return NewHeapAllocator(heap);
  });
}

std::shared_ptr<MemoryBudget> MemoryBudget::Create(size_t limit_bytes, AllocatorSource source) {
  const bool limited = limit_bytes != 0;
  const size_t all = limited ? limit_bytes - limit_bytes / 8 : SIZE_MAX;
  const size_t for_values = limited ? limit_bytes - limit_bytes / 4 : SIZE_MAX;
  const std::shared_ptr<Allocator> reused =
      source(limited ? std::min(kMaxKeptBytes, limit_bytes / 16) : kMaxKeptBytes);
  const auto meters = std::make_shared<Meters>(limit_bytes);
  const size_t in_transit = all - limit_bytes / 32;
  const size_t hosted = all - limit_bytes / 64;
  SmallChargesId small_transit = 0, small_hosted = 0;
  if (limited) {
    small_transit = KeepSmallCharges(
        std::make_shared<internal::SmallTransit>(meters, for_values, in_transit, all));
    small_hosted =
        KeepSmallCharges(std::make_shared<internal::SmallHosted>(meters, for_values, hosted));
  }
  const auto account = [&](AccountKind kind, size_t limit_of_all) {
    return std::shared_ptr<MemoryAccount>(
        new MemoryAccount(meters, kind, for_values, limit_of_all, reused,
                          kind == AccountKind::kTransit ? small_transit : small_hosted));
  };
  std::shared_ptr<MemoryBudget> budget(new MemoryBudget);
  budget->limit_bytes_ = limit_bytes;
  budget->hosted_ = account(AccountKind::kHosted, hosted);
  budget->transit_ = account(AccountKind::kTransit, in_transit);
  budget->essential_ = account(AccountKind::kTransit, all);
  return budget;
}

}  // namespace psd
