#include "core/carrier/shm/lending/lease_book.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/carrier/shm/lending/limits.h"

namespace psd::carrier {

std::optional<uint64_t> LeaseBook::Reserve(size_t bytes) {
  if (places_ >= kMaxLeases || !quota_->Take(bytes)) return std::nullopt;
  ++places_;
  return ++last_lease_;
}

void LeaseBook::GiveBack(size_t bytes) {
  quota_->Give(bytes);
  --places_;
}

void LeaseBook::Add(uint64_t lease, Loan loan) {
  bytes_ += loan.bytes;
  loans_.emplace(lease, std::move(loan));
}

absl::StatusOr<Loan> LeaseBook::Take(uint64_t lease) {
  const auto found = loans_.find(lease);
  if (found == loans_.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the peer returns or declines lease ", lease, ", which is not out"));
  }
  Loan loan = std::move(found->second);
  loans_.erase(found);
  bytes_ -= loan.bytes;
  GiveBack(loan.bytes);
  return loan;
}

const Loan* LeaseBook::Find(uint64_t lease) const {
  const auto found = loans_.find(lease);
  return found == loans_.end() ? nullptr : &found->second;
}

std::vector<Loan> LeaseBook::TakeAll() {
  std::vector<Loan> all;
  all.reserve(loans_.size());
  for (auto& [lease, loan] : loans_) {
    GiveBack(loan.bytes);
    all.push_back(std::move(loan));
  }
  loans_.clear();
  bytes_ = 0;
  return all;
}

}  // namespace psd::carrier
