#include "core/device_loans/device_loans.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/base/device_sharing.h"
#include "core/base/future.h"
#include "core/base/status.h"
#include "proto/psd/v1/worker.pb.h"

namespace psd::device_loans {
namespace {

// The most loans, and the most offers, that are returned with one message.
constexpr size_t kMostReturned = 4096;

// Moves at most kMostReturned numbers out of `from`.
std::vector<uint64_t> TakeSome(std::vector<uint64_t>& from) {
  const auto end = from.begin() + static_cast<std::ptrdiff_t>(std::min(from.size(), kMostReturned));
  std::vector<uint64_t> some(from.begin(), end);
  from.erase(from.begin(), end);
  return some;
}

void Append(const std::vector<uint64_t>& some, std::vector<uint64_t>& to) {
  to.insert(to.end(), some.begin(), some.end());
}

}  // namespace

std::shared_ptr<DeviceLoans> DeviceLoans::Create(
    Incarnation self, const std::vector<std::shared_ptr<Device>>& devices,
    std::shared_ptr<Logger> logger) {
  std::shared_ptr<DeviceLoans> loans(new DeviceLoans(self, devices, logger));
  loans->borrower_ =
      std::make_shared<Borrower>(devices, std::move(logger),
                                 [weak = std::weak_ptr<DeviceLoans>(loans)](Borrower::Ended ended) {
                                   if (const std::shared_ptr<DeviceLoans> self = weak.lock())
                                     self->OnEnded(std::move(ended));
                                 });
  return loans;
}

DeviceLoans::DeviceLoans(Incarnation self, const std::vector<std::shared_ptr<Device>>& devices,
                         std::shared_ptr<Logger> logger)
    : shares_(!devices.empty()),
      logger_(logger),
      lender_(std::make_shared<Lender>(self, devices, std::move(logger))) {}

void DeviceLoans::Serve(rpc::RpcAgent& agent) {
  agent_ = &agent;
  rpc::Serve(agent, kReturnLoans, this, &DeviceLoans::ServeReturn);
}

void DeviceLoans::Close() {
  gate_->Close();
}

std::optional<v1::BorrowOffer> DeviceLoans::OfferTo(const rpc::PeerInfo& lender, Device* device) {
  if (!shares_) return std::nullopt;
  // Another attempt, if an earlier message failed.
  SendReturns(lender);
  return borrower_->OfferTo(lender.incarnation, device);
}

void DeviceLoans::NoteCopied(const rpc::PeerInfo& lender, const Device& device) {
  if (!shares_) return;
  {
    MutexLock lock(mutex_);
    if (noted_.Contains(lender.incarnation)) return;
    noted_.Add(lender.incarnation);
  }
  const std::string why = borrower_->WhyNot(lender.incarnation, device);
  logger_->Log(LogLevel::kInfo, "device_memory_copied",
               absl::StrCat("tensors of ", lender.name, " are copied to ", device.name(),
                            why.empty() ? "" : ": ", why),
               {{"peer", lender.name}, {"device", device.name()}});
}

std::vector<v1::LentBlock> DeviceLoans::Lend(const v1::BorrowOffer& offer,
                                             absl::Span<const Buffer> buffers) {
  return lender_->Lend(offer, buffers);
}

void DeviceLoans::TakeBack(const v1::BorrowOffer& offer, absl::Span<const v1::LentBlock> blocks) {
  std::vector<uint64_t> loans;
  for (const v1::LentBlock& block : blocks) loans.push_back(block.loan());
  lender_->Return(offer.key(), loans);
}

void DeviceLoans::NoteServed(Incarnation borrower, const v1::BorrowOffer* offer, size_t lent,
                             size_t wanted) {
  std::string how = "in place";
  if (!shares_) {
    how = "copied: this worker does not share devices";
  } else if (offer == nullptr) {
    how =
        "copied: it has not asked to read them in place, so it wants them elsewhere, does not "
        "share devices, or has no link through shared memory";
  } else if (lent < wanted) {
    how =
        absl::StrCat("in place: ", lent, " of ", wanted,
                     "; its process has borrowed as much as it may, or they are on other devices");
  }
  MutexLock lock(mutex_);
  served_[borrower] = {std::move(how), offer == nullptr ? "" : offer->key()};
}

std::string DeviceLoans::HowServed(Incarnation borrower) const {
  Served served;
  {
    MutexLock lock(mutex_);
    const auto found = served_.find(borrower);
    if (found == served_.end()) return "";
    served = found->second;
  }
  const Lent lent = lender_->LentTo(served.key);
  if (lent.loans == 0) return served.how;
  return absl::StrCat(served.how, "; its process has borrowed ", lent.bytes, " bytes in ",
                      lent.loans, " blocks");
}

void DeviceLoans::ForgetServed(Incarnation borrower) {
  MutexLock lock(mutex_);
  served_.erase(borrower);
}

absl::Status DeviceLoans::ServeReturn(const rpc::CallPtr& /*call*/, v1::ReturnLoans request) {
  const auto most = static_cast<int>(kMostReturned);
  if (request.loans_size() > most || request.offers_size() > most) {
    return absl::InvalidArgumentError(
        absl::StrCat("device.return_loans: ", request.loans_size(), " loans and ",
                     request.offers_size(), " offers; at most ", most, " of each are expected"));
  }
  lender_->Return(request.key(), request.loans(), request.offers());
  return absl::OkStatus();
}

void DeviceLoans::OnEnded(Borrower::Ended ended) {
  {
    MutexLock lock(mutex_);
    Returning& returning = returning_[ended.lender.incarnation];
    returning.key = std::move(ended.key);
    if (ended.loan != 0) {
      returning.ends.loans.push_back(ended.loan);
    } else {
      returning.ends.offers.push_back(ended.offer);
    }
  }
  SendReturns(ended.lender);
}

void DeviceLoans::SendReturns(const rpc::PeerInfo& lender) {
  const rref::Gate::Entry entry(*gate_);
  if (!entry.open()) return;
  v1::ReturnLoans message;
  Ends ends;
  {
    MutexLock lock(mutex_);
    const auto found = returning_.find(lender.incarnation);
    if (found == returning_.end() || found->second.under_way) return;
    Returning& returning = found->second;
    ends = {TakeSome(returning.ends.loans), TakeSome(returning.ends.offers)};
    returning.under_way = true;
    message.set_key(returning.key);
  }
  message.mutable_loans()->Add(ends.loans.begin(), ends.loans.end());
  message.mutable_offers()->Add(ends.offers.begin(), ends.offers.end());
  // The message is repeated until the lender has received it, in this session or a later one.
  rpc::CallOptions options;
  options.timeout = absl::ZeroDuration();
  rpc::Ask(*agent_, kReturnLoans, {lender.name, lender.incarnation}, message, options)
      .OnReady([weak = weak_from_this(), lender, ends](const absl::StatusOr<Unit>& told) {
        const std::shared_ptr<DeviceLoans> self = weak.lock();
        if (self != nullptr) self->OnReturned(lender, ends, told.status());
      });
}

void DeviceLoans::OnReturned(const rpc::PeerInfo& lender, const Ends& ends,
                             const absl::Status& told) {
  // After an error the loans wait for the next message, as long as the lender's process lives.
  const bool keep = !told.ok() && borrower_->Knows(lender.incarnation);
  {
    MutexLock lock(mutex_);
    Returning& returning = returning_[lender.incarnation];
    returning.under_way = false;
    if (keep) {
      Append(ends.loans, returning.ends.loans);
      Append(ends.offers, returning.ends.offers);
      return;
    }
    const bool all = returning.ends.loans.empty() && returning.ends.offers.empty();
    if (all || !told.ok()) {
      returning_.erase(lender.incarnation);
      return;
    }
  }
  SendReturns(lender);
}

std::vector<carrier::NamedDescriptor> DeviceLoans::ForPeer(
    const std::shared_ptr<carrier::HostProcess>& peer) {
  return lender_->ForPeer(peer);
}

absl::Status DeviceLoans::OnPassed(const std::shared_ptr<carrier::HostProcess>& peer,
                                   const std::string& name, UniqueFd fd) {
  return borrower_->OnPassed(peer, name, std::move(fd));
}

void DeviceLoans::OnNotPassed(const std::string& peer, const absl::Status& why) {
  {
    MutexLock lock(mutex_);
    if (not_passed_.Contains(why.ToString())) return;
    not_passed_.Add(why.ToString());
  }
  logger_->Log(
      LogLevel::kWarning, "device_memory_not_shared",
      absl::StrCat(peer, " and this worker copy what they could read in place: ", why.message()),
      {{"peer", peer}});
}

}  // namespace psd::device_loans
