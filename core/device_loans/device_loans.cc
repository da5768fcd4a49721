#include "core/device_loans/device_loans.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
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

// For a peer that cannot be reached before its hello, which comes behind its descriptors.
rpc::CallOptions OnNewLink() {
  rpc::CallOptions options;
  options.wait_for_ready = true;
  return options;
}

// Returns those of `recalled` that `reply` names. A peer ends no other loans.
std::vector<uint64_t> UnusedOf(const std::vector<uint64_t>& recalled,
                               const v1::ReturnLoansReply& reply) {
  const absl::flat_hash_set<uint64_t> unused(reply.unused().begin(), reply.unused().end());
  std::vector<uint64_t> both;
  for (const uint64_t loan : recalled)
    if (unused.contains(loan)) both.push_back(loan);
  return both;
}

}  // namespace

std::shared_ptr<DeviceLoans> DeviceLoans::Create(
    Incarnation self, const std::vector<std::shared_ptr<Device>>& devices,
    std::shared_ptr<Logger> logger) {
  std::shared_ptr<DeviceLoans> loans(new DeviceLoans(self, devices, logger));
  const auto give_back = [weak = std::weak_ptr<DeviceLoans>(loans),
                          shared_gate = loans->gate_](DeviceBorrower::Ended ended) {
    // This may run on a thread of a device, which must not drop the last reference to it. Whoever
    // closes the gate has another one, and waits for this thread.
    const std::shared_ptr<rref::Gate> gate = shared_gate;
    const rref::Gate::Entry entry(*gate);
    if (!entry.open()) return;
    if (const std::shared_ptr<DeviceLoans> self = weak.lock()) self->OnEnded(std::move(ended));
  };
  loans->borrower_ = std::make_shared<DeviceBorrower>(devices, std::move(logger), give_back);
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

std::optional<v1::BorrowOffer> DeviceLoans::OfferOf(const rpc::PeerInfo& borrower,
                                                    const Device& device) {
  if (!shares_) return std::nullopt;
  // Another attempt, if an earlier message failed.
  SendReturns(borrower);
  {
    MutexLock lock(mutex_);
    if (refusing_.count(borrower.incarnation) > 0) return std::nullopt;
  }
  const std::shared_ptr<carrier::HostProcess> process =
      borrower_->ProcessOf(borrower.incarnation, device);
  return process == nullptr ? std::nullopt : lender_->OfferOf(process, device);
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
  Served& served = served_[borrower];
  served.how = std::move(how);
  if (offer != nullptr) served.key = offer->key();
}

void DeviceLoans::NoteGradientsLent(Incarnation borrower, const v1::BorrowOffer& offer) {
  MutexLock lock(mutex_);
  // An entry is removed when its borrower's session here ends. Without a session it stays.
  if (served_.size() >= kMostNoted && served_.count(borrower) == 0) return;
  Served& served = served_[borrower];
  served.gradients = true;
  served.key = offer.key();
}

void DeviceLoans::NoteGradientsRefused(const rpc::PeerInfo& borrower, const absl::Status& why) {
  {
    MutexLock lock(mutex_);
    const auto found = served_.find(borrower.incarnation);
    if (found != served_.end()) found->second.gradients = false;
    if (!refusing_.insert(borrower.incarnation).second) return;
    // One that is forgotten is lent something once more.
    if (refusing_.size() > kMostNoted) {
      auto other = refusing_.begin();
      if (*other == borrower.incarnation) ++other;
      refusing_.erase(other);
    }
  }
  logger_->Log(LogLevel::kWarning, "device_memory_not_shared",
               absl::StrCat("gradients for ", borrower.name,
                            " are copied, because it cannot read them in place: ", why.message()),
               {{"peer", borrower.name}});
}

std::string DeviceLoans::HowServed(Incarnation borrower) const {
  Served served;
  {
    MutexLock lock(mutex_);
    const auto found = served_.find(borrower);
    if (found == served_.end()) return "";
    served = found->second;
  }
  std::string how = served.how;
  if (served.gradients) absl::StrAppend(&how, how.empty() ? "" : "; ", "its gradients in place");
  const Lent lent = lender_->LentTo(served.key);
  if (lent.loans == 0) return how;
  return absl::StrCat(how, "; its process has borrowed ", lent.bytes, " bytes in ", lent.loans,
                      " blocks");
}

void DeviceLoans::ForgetServed(Incarnation borrower) {
  MutexLock lock(mutex_);
  served_.erase(borrower);
}

absl::StatusOr<v1::ReturnLoansReply> DeviceLoans::ServeReturn(const rpc::CallPtr& call,
                                                              v1::ReturnLoans request) {
  const auto most = static_cast<int>(kMostReturned);
  if (request.loans_size() > most || request.offers_size() > most ||
      request.recalled_size() > most) {
    return absl::InvalidArgumentError(
        absl::StrCat("device.return_loans: ", request.loans_size(), " loans, ",
                     request.offers_size(), " offers and ", request.recalled_size(),
                     " loans that are recalled; at most ", most, " of each are expected"));
  }
  lender_->Return(request.key(), request.loans(), request.offers());
  v1::ReturnLoansReply reply;
  if (!shares_) {
    // It never borrows anything.
    *reply.mutable_unused() = request.recalled();
    return reply;
  }
  const absl::StatusOr<std::vector<uint64_t>> unused =
      borrower_->OnRecalled(call->caller(), request.recalled());
  // The loans that came back with the message have ended, so it must not be repeated.
  if (unused.ok()) {
    reply.mutable_unused()->Add(unused->begin(), unused->end());
  } else {
    const std::string why(unused.status().message());
    LogOnce("device_loans_kept", call->caller().name, why, why);
  }
  return reply;
}

void DeviceLoans::MakeRoomFor(Incarnation added) {
  std::vector<Incarnation> waiting;
  {
    MutexLock lock(mutex_);
    if (returning_.count(added) != 0) return;
    for (const auto& [peer, returning] : returning_)
      if (!returning.under_way) waiting.push_back(peer);
  }
  for (const Incarnation peer : waiting) {
    if (borrower_->Knows(peer)) continue;
    MutexLock lock(mutex_);
    const auto found = returning_.find(peer);
    if (found != returning_.end() && !found->second.under_way) returning_.erase(found);
  }
}

DeviceLoans::Returning& DeviceLoans::ReturningTo(const rpc::PeerInfo& peer) {
  Returning& returning = returning_[peer.incarnation];
  returning.peer = peer;
  return returning;
}

void DeviceLoans::OnEnded(DeviceBorrower::Ended ended) {
  MakeRoomFor(ended.lender.incarnation);
  {
    MutexLock lock(mutex_);
    Returning& returning = ReturningTo(ended.lender);
    returning.key = std::move(ended.key);
    const bool is_loan = ended.loan != 0;
    std::vector<uint64_t>& ends = is_loan ? returning.ends.loans : returning.ends.offers;
    if (ends.size() < kMostWaiting) ends.push_back(is_loan ? ended.loan : ended.offer);
  }
  SendReturns(ended.lender);
}

void DeviceLoans::Recall(const rpc::PeerInfo& borrower, absl::Span<const uint64_t> loans) {
  MakeRoomFor(borrower.incarnation);
  {
    MutexLock lock(mutex_);
    std::vector<uint64_t>& recalled = ReturningTo(borrower).ends.recalled;
    recalled.insert(recalled.end(), loans.begin(), loans.end());
    lender_->DropEnded(recalled);
  }
  SendReturns(borrower);
}

void DeviceLoans::SendReturns(const rpc::PeerInfo& peer, rpc::CallOptions options) {
  const rref::Gate::Entry entry(*gate_);
  if (!entry.open()) return;
  v1::ReturnLoans message;
  Ends ends;
  {
    MutexLock lock(mutex_);
    const auto found = returning_.find(peer.incarnation);
    if (found == returning_.end() || found->second.under_way) return;
    Returning& returning = found->second;
    lender_->DropEnded(returning.ends.recalled);
    if (returning.ends.empty()) {
      returning_.erase(found);
      return;
    }
    ends = {TakeSome(returning.ends.loans), TakeSome(returning.ends.offers),
            TakeSome(returning.ends.recalled)};
    returning.under_way = true;
    // A message that does not wait for the new link may fail before that is ready.
    if (options.wait_for_ready) returning.again = false;
    message.set_key(returning.key);
  }
  message.mutable_loans()->Add(ends.loans.begin(), ends.loans.end());
  message.mutable_offers()->Add(ends.offers.begin(), ends.offers.end());
  message.mutable_recalled()->Add(ends.recalled.begin(), ends.recalled.end());
  rpc::Ask(*agent_, kReturnLoans, {peer.name, peer.incarnation}, message, options)
      .OnReady(
          [weak = weak_from_this(), peer, ends](const absl::StatusOr<v1::ReturnLoansReply>& told) {
            const std::shared_ptr<DeviceLoans> self = weak.lock();
            if (self != nullptr) self->OnReturned(peer, ends, told);
          });
}

void DeviceLoans::OnReturned(const rpc::PeerInfo& peer, const Ends& ends,
                             const absl::StatusOr<v1::ReturnLoansReply>& told) {
  if (told.ok()) lender_->TakeBack(UnusedOf(ends.recalled, *told));
  // After an error the loans wait for the next message, as long as the peer's process lives.
  const bool keep = !told.ok() && borrower_->Knows(peer.incarnation);
  bool again = false;
  {
    MutexLock lock(mutex_);
    Returning& returning = returning_[peer.incarnation];
    returning.under_way = false;
    if (keep) {
      Append(ends.loans, returning.ends.loans);
      Append(ends.offers, returning.ends.offers);
      Append(ends.recalled, returning.ends.recalled);
      if (!returning.again) return;
      again = true;
    } else if (returning.ends.empty() || !told.ok()) {
      returning_.erase(peer.incarnation);
      return;
    }
  }
  again ? SendReturns(peer, OnNewLink()) : SendReturns(peer);
}

std::vector<carrier::NamedDescriptor> DeviceLoans::ForPeer(
    const std::shared_ptr<carrier::HostProcess>& peer) {
  return lender_->ForPeer(peer);
}

absl::Status DeviceLoans::OnPassed(const std::shared_ptr<carrier::HostProcess>& peer,
                                   const std::string& name, UniqueFd fd) {
  PSD_RETURN_IF_ERROR(borrower_->OnPassed(peer, name, std::move(fd)));
  v1::ShownDevice shown;
  if (shown.ParseFromString(name)) OnLink(shown.incarnation());
  return absl::OkStatus();
}

void DeviceLoans::OnLink(Incarnation peer) {
  rpc::PeerInfo known;
  {
    MutexLock lock(mutex_);
    refusing_.erase(peer);
    const auto found = returning_.find(peer);
    if (found == returning_.end()) return;
    // The message that is under way may have failed before this link.
    found->second.again = true;
    if (found->second.under_way) return;
    known = found->second.peer;
  }
  SendReturns(known, OnNewLink());
}

void DeviceLoans::OnNotPassed(const std::string& peer, const absl::Status& why) {
  // The name of a peer that cannot be found has a new number for each connection.
  LogOnce(
      "device_memory_not_shared", peer, why.message(),
      absl::StrCat(peer, " and this worker copy what they could read in place: ", why.message()));
}

void DeviceLoans::LogOnce(absl::string_view event, const std::string& peer,
                          absl::string_view reason, const std::string& text) {
  {
    MutexLock lock(mutex_);
    if (logged_.Contains(std::string(reason))) return;
    logged_.Add(std::string(reason));
  }
  logger_->Log(LogLevel::kWarning, event, text, {{"peer", peer}});
}

}  // namespace psd::device_loans
