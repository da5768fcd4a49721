#include "core/store/memory_budget.h"

#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace psd::store {
namespace {

// What is in use, counted in the bytes that were asked for. Thread-safe.
class Account {
 public:
  explicit Account(size_t limit_bytes) : limit_bytes_(limit_bytes) {}

  absl::Status Charge(size_t bytes) {
    size_t used = used_bytes_.load(std::memory_order_relaxed);
    do {
      const size_t left = limit_bytes_ == 0 ? SIZE_MAX - used : limit_bytes_ - used;
      if (bytes > left) return Refusal(bytes, used);
    } while (!used_bytes_.compare_exchange_weak(used, used + bytes, std::memory_order_relaxed));
    return absl::OkStatus();
  }
  void Credit(size_t bytes) { used_bytes_.fetch_sub(bytes, std::memory_order_relaxed); }

  size_t limit_bytes() const { return limit_bytes_; }
  size_t used_bytes() const { return used_bytes_.load(std::memory_order_relaxed); }

 private:
  absl::Status Refusal(size_t bytes, size_t used) const {
    return absl::ResourceExhaustedError(
        absl::StrCat("no memory for ", bytes, " bytes more: the budget is ", limit_bytes_,
                     " bytes, of which ", used, " are in use; drop values or raise the budget"));
  }

  const size_t limit_bytes_;
  std::atomic<size_t> used_bytes_{0};
};

class ChargedBlock : public Block {
 public:
  ChargedBlock(std::shared_ptr<Block> block, std::shared_ptr<Account> account)
      : Block(block->data(), block->size()),
        block_(std::move(block)),
        account_(std::move(account)) {}
  ~ChargedBlock() override {
    block_.reset();  // first the memory, then the account: what is credited is really free
    account_->Credit(size());
  }

 private:
  std::shared_ptr<Block> block_;
  const std::shared_ptr<Account> account_;  // shared by the budget, live blocks and charges
};

class MemoryBudgetImpl : public MemoryBudget {
 public:
  MemoryBudgetImpl(size_t limit_bytes, std::shared_ptr<Allocator> underlying)
      : account_(std::make_shared<Account>(limit_bytes)), underlying_(std::move(underlying)) {}

  absl::StatusOr<std::shared_ptr<Block>> Allocate(size_t bytes) override {
    PSD_RETURN_IF_ERROR(account_->Charge(bytes));
    absl::StatusOr<std::shared_ptr<Block>> block = underlying_->Allocate(bytes);
    if (!block.ok()) {
      account_->Credit(bytes);
      return block.status();
    }
    return std::make_shared<ChargedBlock>(*std::move(block), account_);
  }

  absl::StatusOr<MemoryCharge> Charge(size_t bytes) override {
    if (bytes == 0) return MemoryCharge();
    PSD_RETURN_IF_ERROR(account_->Charge(bytes));
    return MemoryCharge(account_.get(),
                        [account = account_, bytes](const void*) { account->Credit(bytes); });
  }

  size_t limit_bytes() const override { return account_->limit_bytes(); }
  size_t used_bytes() const override { return account_->used_bytes(); }

 private:
  const std::shared_ptr<Account> account_;       // shared with live blocks and charges
  const std::shared_ptr<Allocator> underlying_;  // shared with who made it
};

}  // namespace

std::shared_ptr<MemoryBudget> MemoryBudget::Create(size_t limit_bytes,
                                                   std::shared_ptr<Allocator> underlying) {
  return std::make_shared<MemoryBudgetImpl>(limit_bytes, std::move(underlying));
}

}  // namespace psd::store
