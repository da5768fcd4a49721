#pragma once

// Memory of a device that two processes of one host have in common is not copied between them: the
// process that has allocated a block lends it, and the other one reads it in place.
//
// Both processes must allow it (RuntimeOptions::share_devices), be linked through shared memory and
// use the same device (DeviceSharing::identity). Each shows the other the memory of its devices
// when a link opens. A request offers to borrow (OfferTo), the answer names the blocks that are
// lent (Lend), and the caller maps them (Borrow). A worker also lends blocks in a request of its
// own (OfferOf, Lend): the process that has shown a device can borrow on it. If such a request
// fails, it may not have come, and the lender asks for its loans (Recall). Everything that is not
// lent is copied as if this layer did not exist.

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "core/base/buffer.h"
#include "core/base/device.h"
#include "core/base/ids.h"
#include "core/base/log.h"
#include "core/base/mutex.h"
#include "core/base/recent_set.h"
#include "core/base/unique_fd.h"
#include "core/carrier/passed_descriptors.h"
#include "core/device_loans/borrower.h"
#include "core/device_loans/lender.h"
#include "core/rpc/declared_method.h"
#include "core/rpc/rpc_agent.h"
#include "core/rref/gate.h"

namespace psd::v1 {
class BorrowOffer;
class LentBlock;
class ReturnLoans;
class ReturnLoansReply;
}  // namespace psd::v1

namespace psd::device_loans {

// Ends loans. One that is not out has ended already, because the message may come twice. Asks for
// the end of others; the answer names those that the receiver does not use.
inline constexpr rpc::Declared<v1::ReturnLoans, v1::ReturnLoansReply> kReturnLoans{
    {"device.return_loans", rpc::MethodKind::kRead, rpc::RunsOn::kCarrierThread}};

// Shared by the worker, its carrier, and the blocks that it has borrowed. Thread-safe.
class DeviceLoans : public carrier::DescriptorUser,
                    public std::enable_shared_from_this<DeviceLoans> {
 public:
  // The most loans, and the most offers, that wait to be returned to one lender. A lender has lent
  // far fewer to a process (Lender::kMostLoans), so further ones are made up, or the lender does
  // not answer; they end with this process.
  static constexpr size_t kMostWaiting = 4 * Lender::kMostLoans;

  // `devices` are those of the worker that are shared; none if it shares nothing.
  static std::shared_ptr<DeviceLoans> Create(Incarnation self,
                                             const std::vector<std::shared_ptr<Device>>& devices,
                                             std::shared_ptr<Logger> logger);

  // Registers the method. To be called once, before the agent starts. The agent must live until
  // Close.
  void Serve(rpc::RpcAgent& agent) PSD_EXCLUDES(mutex_);
  // From now on, loans that end are not returned. Waits for calls that use the agent.
  void Close();

  bool shares() const { return shares_; }

  // ---- As a borrower. See DeviceBorrower.
  std::optional<v1::BorrowOffer> OfferTo(const rpc::PeerInfo& lender, Device* device)
      PSD_EXCLUDES(mutex_);
  void Withdraw(const rpc::PeerInfo& lender, const v1::BorrowOffer& offer) {
    borrower_->Withdraw(lender, offer);
  }
  absl::StatusOr<Buffer> Borrow(const rpc::PeerInfo& lender, Device& device,
                                const v1::LentBlock& block,
                                std::optional<absl::string_view> key = std::nullopt) {
    return borrower_->Borrow(lender, device, block, key);
  }
  void Decline(const rpc::PeerInfo& lender, const v1::LentBlock& block) {
    borrower_->Decline(lender, block);
  }
  // The device of this worker with that identity, if it is shared; otherwise null.
  Device* OwnDevice(absl::string_view identity) const { return borrower_->OwnDevice(identity); }
  // Says in a log, once for each lender, that its tensors on `device` are copied and why, if this
  // worker shares that device.
  void NoteCopied(const rpc::PeerInfo& lender, const Device& device) PSD_EXCLUDES(mutex_);

  // ---- As a lender. See Lender.
  Device* DeviceOf(const v1::BorrowOffer& offer) const { return lender_->DeviceOf(offer); }
  std::vector<v1::LentBlock> Lend(const v1::BorrowOffer& offer, absl::Span<const Buffer> buffers);
  // Returns what stands for an offer of `borrower` to borrow on `device`, for requests of this
  // worker. Nothing if its process has not shown that device to this one, or the other way round,
  // or if `borrower` cannot read what is lent (NoteGradientsRefused).
  std::optional<v1::BorrowOffer> OfferOf(const rpc::PeerInfo& borrower, const Device& device)
      PSD_EXCLUDES(mutex_);
  // Asks `borrower` for the end of those of its loans that it does not use: the request that named
  // them has failed, so nobody knows whether it has come. Those that the answer names end when it
  // comes. Those in use end when the borrower returns them. Repeated until the borrower has
  // answered, as returns are.
  void Recall(const rpc::PeerInfo& borrower, absl::Span<const uint64_t> loans) PSD_EXCLUDES(mutex_);
  // Remembers how a fetch of large tensors on devices was answered: `lent` of `wanted` tensors.
  // `offer` is null if the request had none.
  void NoteServed(Incarnation borrower, const v1::BorrowOffer* offer, size_t lent, size_t wanted)
      PSD_EXCLUDES(mutex_);
  // Remembers that gradients were lent to `borrower`.
  void NoteGradientsLent(Incarnation borrower, const v1::BorrowOffer& offer) PSD_EXCLUDES(mutex_);
  // Remembers that `borrower` cannot read gradients that are lent, so that they are copied until it
  // shows a device on a new link, and says so in a log.
  void NoteGradientsRefused(const rpc::PeerInfo& borrower, const absl::Status& why)
      PSD_EXCLUDES(mutex_);
  // How the latest fetch was answered, whether gradients were lent, and what the borrower's process
  // has borrowed now, for a status page. Empty if there was nothing of that.
  std::string HowServed(Incarnation borrower) const PSD_EXCLUDES(mutex_);
  // To be called when the session of a worker has ended.
  void ForgetServed(Incarnation borrower) PSD_EXCLUDES(mutex_);
  // Ends loans of which no message has told the borrower.
  void TakeBack(absl::Span<const uint64_t> loans) { lender_->TakeBack(loans); }
  std::vector<Lent> lent() const { return lender_->lent(); }

  // ---- carrier::DescriptorUser
  std::vector<carrier::NamedDescriptor> ForPeer(
      const std::shared_ptr<carrier::HostProcess>& peer) override;
  absl::Status OnPassed(const std::shared_ptr<carrier::HostProcess>& peer, const std::string& name,
                        UniqueFd fd) override;
  void OnNotPassed(const std::string& peer, const absl::Status& why) override PSD_EXCLUDES(mutex_);

 private:
  // The most lenders for which it is remembered that the log says why their tensors are copied, and
  // the most borrowers that cannot read gradients.
  static constexpr size_t kMostNoted = 1024;

  // The numbers of loans that have ended, of offers all of whose loans have, and of own loans that
  // are recalled.
  struct Ends {
    std::vector<uint64_t> loans;
    std::vector<uint64_t> offers;
    std::vector<uint64_t> recalled;

    bool empty() const { return loans.empty() && offers.empty() && recalled.empty(); }
  };
  // Those that the other worker does not know yet.
  struct Returning {
    rpc::PeerInfo peer;
    std::string key;  // empty if only loans of this worker are recalled
    Ends ends;
    bool under_way = false;  // a message is
    bool again = false;      // a link has opened since: send once more if the message fails
  };

  DeviceLoans(Incarnation self, const std::vector<std::shared_ptr<Device>>& devices,
              std::shared_ptr<Logger> logger);
  absl::StatusOr<v1::ReturnLoansReply> ServeReturn(const rpc::CallPtr& call,
                                                   v1::ReturnLoans request);
  void OnEnded(DeviceBorrower::Ended ended) PSD_EXCLUDES(mutex_);
  // Forgets what waits for workers whose processes have ended, if nothing waits for `added` yet. So
  // the number of workers for which something waits is bounded by those that live.
  void MakeRoomFor(Incarnation added) PSD_EXCLUDES(mutex_);
  // Returns what waits for `peer`.
  Returning& ReturningTo(const rpc::PeerInfo& peer) PSD_REQUIRES(mutex_);
  // Tells the other worker which loans have ended or are recalled, unless it is being told. By
  // default the message is repeated as long as the session there lasts.
  void SendReturns(const rpc::PeerInfo& peer, rpc::CallOptions options = {absl::ZeroDuration()})
      PSD_EXCLUDES(mutex_);
  void OnReturned(const rpc::PeerInfo& peer, const Ends& ends,
                  const absl::StatusOr<v1::ReturnLoansReply>& told) PSD_EXCLUDES(mutex_);
  // Writes a warning, unless one for this reason was written lately.
  void LogOnce(absl::string_view event, const std::string& peer, absl::string_view reason,
               const std::string& text) PSD_EXCLUDES(mutex_);
  // A link to the worker `peer` opens, on which it shows a device: tries again what could not be
  // delivered, and what it could not read.
  void OnLink(Incarnation peer) PSD_EXCLUDES(mutex_);

  const bool shares_;
  const std::shared_ptr<Logger> logger_;
  // Callbacks that come late hold weak pointers to these.
  const std::shared_ptr<Lender> lender_;
  std::shared_ptr<DeviceBorrower> borrower_;  // fixed by Create
  // The agent exists as long as it is open.
  const std::shared_ptr<rref::Gate> gate_ = std::make_shared<rref::Gate>();
  rpc::RpcAgent* agent_ = nullptr;  // fixed by Serve

  mutable Mutex mutex_;  // before: Lender
  // By the incarnation of the other worker.
  std::map<Incarnation, Returning> returning_ PSD_GUARDED_BY(mutex_);
  struct Served {
    std::string how;         // empty if nothing was fetched
    bool gradients = false;  // were lent
    std::string key;         // of the borrower's process; empty if it has never borrowed
  };
  std::map<Incarnation, Served> served_ PSD_GUARDED_BY(mutex_);       // by borrower
  RecentSet<std::string> logged_ PSD_GUARDED_BY(mutex_){kMostNoted};  // reasons that the log has
  RecentSet<Incarnation> noted_ PSD_GUARDED_BY(mutex_){kMostNoted};
  std::set<Incarnation> refusing_ PSD_GUARDED_BY(mutex_);  // at most kMostNoted
};

}  // namespace psd::device_loans
