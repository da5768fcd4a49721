#pragma once

// Memory of a device that two processes of one host have in common is not copied between them: the
// process that has allocated a block lends it, and the other one reads it in place.
//
// Both processes must allow it (RuntimeOptions::share_devices), be linked through shared memory and
// use the same device (DeviceSharing::identity). Each shows the other the memory of its devices
// when a link opens. A request offers to borrow (OfferTo), the answer names the blocks that are
// lent (Lend), and the caller maps them (Borrow). Everything that is not lent is copied as if this
// layer did not exist.

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
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
}  // namespace psd::v1

namespace psd::device_loans {

// Ends loans. One that is not out has ended already, because the message may come twice.
inline constexpr rpc::Declared<v1::ReturnLoans, Unit> kReturnLoans{
    {"device.return_loans", rpc::MethodKind::kRead, rpc::RunsOn::kCarrierThread}};

// Shared by the worker, its carrier, and the blocks that it has borrowed. Thread-safe.
class DeviceLoans : public carrier::DescriptorUser,
                    public std::enable_shared_from_this<DeviceLoans> {
 public:
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

  // ---- As a borrower. See Borrower.
  std::optional<v1::BorrowOffer> OfferTo(const rpc::PeerInfo& lender, Device* device)
      PSD_EXCLUDES(mutex_);
  void Withdraw(const rpc::PeerInfo& lender, const v1::BorrowOffer& offer) {
    borrower_->Withdraw(lender, offer);
  }
  absl::StatusOr<Buffer> Borrow(const rpc::PeerInfo& lender, Device& device,
                                const v1::LentBlock& block) {
    return borrower_->Borrow(lender, device, block);
  }
  void Decline(const rpc::PeerInfo& lender, const v1::LentBlock& block) {
    borrower_->Decline(lender, block);
  }
  // Says in a log, once for each lender, that its tensors on `device` are copied and why, if this
  // worker shares that device.
  void NoteCopied(const rpc::PeerInfo& lender, const Device& device) PSD_EXCLUDES(mutex_);

  // ---- As a lender. See Lender.
  Device* DeviceOf(const v1::BorrowOffer& offer) const { return lender_->DeviceOf(offer); }
  std::vector<v1::LentBlock> Lend(const v1::BorrowOffer& offer, absl::Span<const Buffer> buffers);
  // Remembers how a fetch of large tensors on devices was answered: `lent` of `wanted` tensors.
  // `offer` is null if the request had none.
  void NoteServed(Incarnation borrower, const v1::BorrowOffer* offer, size_t lent, size_t wanted)
      PSD_EXCLUDES(mutex_);
  // How the latest fetch was answered, and what the borrower's process has borrowed now, for a
  // status page. Empty if there was none.
  std::string HowServed(Incarnation borrower) const PSD_EXCLUDES(mutex_);
  // To be called when the session of a worker has ended.
  void ForgetServed(Incarnation borrower) PSD_EXCLUDES(mutex_);
  void TakeBack(const v1::BorrowOffer& offer, absl::Span<const v1::LentBlock> blocks);
  std::vector<Lent> lent() const { return lender_->lent(); }

  // ---- carrier::DescriptorUser
  std::vector<carrier::NamedDescriptor> ForPeer(
      const std::shared_ptr<carrier::HostProcess>& peer) override;
  absl::Status OnPassed(const std::shared_ptr<carrier::HostProcess>& peer, const std::string& name,
                        UniqueFd fd) override;
  void OnNotPassed(const std::string& peer, const absl::Status& why) override PSD_EXCLUDES(mutex_);

 private:
  // The most lenders for which it is remembered that the log says why their tensors are copied.
  static constexpr size_t kMostNoted = 1024;

  // The numbers of loans that have ended, and of offers all of whose loans have.
  struct Ends {
    std::vector<uint64_t> loans;
    std::vector<uint64_t> offers;
  };
  // Those that their lender does not know yet.
  struct Returning {
    std::string key;
    Ends ends;
    bool under_way = false;  // a message is
  };

  DeviceLoans(Incarnation self, const std::vector<std::shared_ptr<Device>>& devices,
              std::shared_ptr<Logger> logger);
  absl::Status ServeReturn(const rpc::CallPtr& call, v1::ReturnLoans request);
  void OnEnded(Borrower::Ended ended) PSD_EXCLUDES(mutex_);
  // Tells the lender which loans have ended, unless it is being told.
  void SendReturns(const rpc::PeerInfo& lender) PSD_EXCLUDES(mutex_);
  void OnReturned(const rpc::PeerInfo& lender, const Ends& ends, const absl::Status& told)
      PSD_EXCLUDES(mutex_);

  const bool shares_;
  const std::shared_ptr<Logger> logger_;
  const std::shared_ptr<Lender> lender_;  // shared with callbacks for the end of processes
  std::shared_ptr<Borrower> borrower_;    // as lender_; fixed by Create
  // The agent exists as long as it is open. Shared with answers that come late.
  const std::shared_ptr<rref::Gate> gate_ = std::make_shared<rref::Gate>();
  rpc::RpcAgent* agent_ = nullptr;  // fixed by Serve

  mutable Mutex mutex_;  // leaf
  // By the incarnation of the lender.
  std::map<Incarnation, Returning> returning_ PSD_GUARDED_BY(mutex_);
  struct Served {
    std::string how;
    std::string key;  // of the borrower's process; empty if it has shown none
  };
  std::map<Incarnation, Served> served_ PSD_GUARDED_BY(mutex_);  // by borrower
  // The reasons for which nothing was passed, and which the log has.
  RecentSet<std::string> not_passed_ PSD_GUARDED_BY(mutex_){kMostNoted};
  RecentSet<Incarnation> noted_ PSD_GUARDED_BY(mutex_){kMostNoted};
};

}  // namespace psd::device_loans
