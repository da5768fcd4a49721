#include "core/carrier/shm/lending/lender.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/carrier/link_rules.h"
#include "core/carrier/shm/lending/limits.h"
#include "core/carrier/shm/lending/loose_buffers.h"

namespace psd::carrier {
// How a message would be lent.
struct Lender::Plan {
  std::vector<LentBuffer> buffers;
  size_t bytes = 0;  // of the buffers in segments
  // One segment each, and the ids. Both are in the order of the ids.
  std::vector<SharedSegment*> segments;
  std::vector<uint64_t> ids;
};

bool Lender::MayLend(const Message& message) {
  return std::any_of(message.buffers.begin(), message.buffers.end(), [](const Buffer& buffer) {
    return buffer.size() >= kLeastLentBytes && buffer.place().segment() != nullptr;
  });
}

std::optional<Lender::Plan> Lender::MakePlan(const Message& message) {
  Plan plan;
  plan.buffers.reserve(message.buffers.size());
  for (const Buffer& buffer : message.buffers) {
    LentBuffer& lent = plan.buffers.emplace_back();
    lent.bytes = buffer.size();
    SharedSegment* const segment = NamedSegment(buffer);
    if (segment == nullptr) continue;
    lent.segment = segment->id();
    lent.offset = buffer.segment_offset();
    plan.bytes += lent.bytes;
    plan.segments.push_back(segment);
  }
  if (plan.bytes == 0 || LentFrameBytes(message.header.size(), plan.buffers) > kMaxLentFrameBytes) {
    return std::nullopt;
  }
  std::sort(plan.segments.begin(), plan.segments.end(),
            [](const auto* a, const auto* b) { return a->id() < b->id(); });
  plan.segments.erase(std::unique(plan.segments.begin(), plan.segments.end()), plan.segments.end());
  for (const SharedSegment* segment : plan.segments) plan.ids.push_back(segment->id());
  return plan;
}

Lender::Lender(std::shared_ptr<NoteBox> notes, std::shared_ptr<MemoryAccount> account,
               std::string address, std::shared_ptr<Quota> quota,
               std::shared_ptr<Executor> unmapper)
    : notes_(std::move(notes)),
      account_(std::move(account)),
      address_(std::move(address)),
      unmapper_(std::move(unmapper)),
      book_(std::move(quota)) {}

std::optional<Lender::Lent> Lender::Lend(Message& message, Pass pass) {
  // The other half is left for what is sent to readers that return it.
  if (account_->used_bytes() > account_->most_bytes() / 2) return std::nullopt;
  std::optional<Plan> plan = MakePlan(message);
  size_t gathered = 0;
  if (!plan.has_value()) {
    gathered = GatherLooseBuffers(message, *account_);
    if (gathered > 0) plan = MakePlan(message);
  }
  if (!plan.has_value()) return std::nullopt;
  absl::StatusOr<MemoryCharge> charge = ChargeQueued(message, *account_, address_);
  if (!charge.ok()) return std::nullopt;
  Lent lent;
  std::vector<uint64_t> fresh;
  {
    MutexLock lock(mutex_);
    if (ended_) return std::nullopt;
    const std::optional<uint64_t> lease = book_.Reserve(plan->bytes);
    if (!lease.has_value()) return std::nullopt;
    if (!shown_.Name(plan->ids, fresh)) {
      book_.GiveBack(plan->bytes);
      return std::nullopt;
    }
    lent.lease = *lease;
  }
  const bool passed = PassAll(*plan, fresh, pass);
  if (passed) lent.frame.Lent(lent.lease, message, plan->buffers);
  MutexLock lock(mutex_);
  if (!passed || ended_) {
    book_.GiveBack(plan->bytes);
    return std::nullopt;
  }
  lent.copied_bytes = message.BufferBytes() - plan->bytes + gathered;
  lent_bytes_.Add(plan->bytes);
  message.charge = *std::move(charge);
  book_.Add(lent.lease, {std::move(message), std::move(plan->ids), plan->bytes});
  NoteBytesNow();
  return lent;
}

bool Lender::PassAll(const Plan& plan, const std::vector<uint64_t>& fresh, Pass pass) {
  bool all = true;
  for (SharedSegment* const segment : plan.segments) {
    if (!std::binary_search(fresh.begin(), fresh.end(), segment->id())) continue;
    all = all && pass(*segment);
    if (all) segment->Watch(notes_);
    MutexLock lock(mutex_);
    if (all) {
      shown_.Passed(segment->id());
    } else {
      shown_.Hide(segment->id());
    }
  }
  return all;
}

void Lender::Cancel(uint64_t lease) {
  Loan dropped;  // destroyed after the lock
  MutexLock lock(mutex_);
  absl::StatusOr<Loan> loan = book_.Take(lease);
  if (loan.ok()) dropped = *std::move(loan);
  NoteBytesNow();
}

absl::Status Lender::OnReturned(const std::vector<uint64_t>& leases) {
  std::vector<Loan> loans;  // destroyed after the lock
  MutexLock lock(mutex_);
  if (ended_) return absl::OkStatus();
  for (const uint64_t lease : leases) {
    PSD_ASSIGN_OR_RETURN(Loan loan, book_.Take(lease));
    loans.push_back(std::move(loan));
  }
  NoteBytesNow();
  return absl::OkStatus();
}

absl::StatusOr<Message> Lender::OnDeclined(const DeclinedFrame& declined) {
  MutexLock lock(mutex_);
  if (ended_) return absl::UnavailableError("the link has ended");
  const Loan* const out = book_.Find(declined.lease);
  if (out != nullptr &&
      !std::binary_search(out->segments.begin(), out->segments.end(), declined.segment)) {
    return absl::InvalidArgumentError(absl::StrCat("the peer declines segment ", declined.segment,
                                                   ", which lease ", declined.lease,
                                                   " does not name"));
  }
  PSD_ASSIGN_OR_RETURN(Loan loan, book_.Take(declined.lease));
  shown_.Decline(declined.segment);
  NoteBytesNow();
  return std::move(loan.message);
}

absl::Status Lender::OnForgotten(uint64_t segment) {
  MutexLock lock(mutex_);
  return shown_.Forget(segment);
}

std::vector<uint64_t> Lender::OnGone(const std::vector<uint64_t>& segments) {
  std::vector<uint64_t> told;
  MutexLock lock(mutex_);
  for (const uint64_t segment : segments) {
    if (shown_.Gone(segment)) told.push_back(segment);
  }
  return told;
}

void Lender::End() {
  std::vector<Loan> loans;
  {
    MutexLock lock(mutex_);
    ended_ = true;
    loans = book_.TakeAll();
    NoteBytesNow();
  }
  for (const Loan& loan : loans) {
    for (const Buffer& buffer : loan.message.buffers) {
      if (SharedSegment* const segment = buffer.place().segment()) segment->Retire();
    }
  }
  if (loans.empty()) return;
  unmapper_->Submit([loans = std::move(loans)]() mutable { loans.clear(); }).IgnoreError();
}

}  // namespace psd::carrier
