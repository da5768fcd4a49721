#pragma once

// The blocks of other processes' devices that this worker reads in place.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/base/buffer.h"
#include "core/base/device.h"
#include "core/base/device_sharing.h"
#include "core/base/ids.h"
#include "core/base/log.h"
#include "core/base/mutex.h"
#include "core/base/unique_fd.h"
#include "core/carrier/passed_descriptors.h"
#include "core/rpc/rpc_agent.h"

namespace psd::v1 {
class BorrowOffer;
class LentBlock;
}  // namespace psd::v1

namespace psd::device_loans {

// Knows which devices other workers have shown to this process, opens them when the first block is
// borrowed, and returns each block when its last user has dropped it. Thread-safe.
class DeviceBorrower : public std::enable_shared_from_this<DeviceBorrower> {
 public:
  // The most devices of one process that are kept.
  static constexpr size_t kMostOfProcess = 64;
  // If so many lenders have recalled loans, a lender that has shown no device, or whose devices are
  // not kept, can recall none.
  static constexpr size_t kMostStrangers = 4096;

  // A loan that has ended, or all loans of an offer.
  struct Ended {
    rpc::PeerInfo lender;
    std::string key;
    uint64_t loan = 0;   // 0 for an offer
    uint64_t offer = 0;  // its number; 0 for a loan
  };
  using Return = std::function<void(Ended ended)>;

  // `devices` are those that may be shared. `give_back` is called once for each block that was
  // borrowed or refused, and for each offer that was withdrawn, on any thread without a lock.
  DeviceBorrower(std::vector<std::shared_ptr<Device>> devices, std::shared_ptr<Logger> logger,
                 Return give_back);
  DeviceBorrower(const DeviceBorrower&) = delete;
  DeviceBorrower& operator=(const DeviceBorrower&) = delete;

  // Keeps a descriptor that `process` has passed, if it is of one of this worker's devices. Another
  // descriptor of the same device and worker is closed, unless the one before it is being opened or
  // could not be for lack of room. Closed are also those of a process that has shown kMostOfProcess
  // already, for example those of workers that it ran before: what these workers have is copied.
  // Errors: INVALID_ARGUMENT for a name that is no v1::ShownDevice.
  absl::Status OnPassed(const std::shared_ptr<carrier::HostProcess>& process,
                        const std::string& name, UniqueFd fd) PSD_EXCLUDES(mutex_);

  // Returns what a request to `lender` says so that its blocks can be borrowed on `device`. Nothing
  // if they cannot be. If no answer to the request is taken, Withdraw must be called.
  std::optional<v1::BorrowOffer> OfferTo(Incarnation lender, Device* device) PSD_EXCLUDES(mutex_);
  // Returns all that was lent for `offer`: the answer that names it may have been lost, together
  // with the session or the link.
  void Withdraw(const rpc::PeerInfo& lender, const v1::BorrowOffer& offer) const;

  // Returns the bytes of `block`, on `device`, which `lender` has lent. `key` is the one under
  // which the lender says that it has lent it; none if this process has told the lender its key
  // itself (OfferTo). The loan is returned when its last user has dropped it, or at once after an
  // error, with these exceptions: a loan that is out already, which its first user returns; one of
  // a lender whose device is not known, for example because its process has ended; one of another
  // key; and one without a number. May wait for another thread that opens the same device. The
  // first error is logged. After an INVALID_ARGUMENT, or an error of the system, nothing more is
  // borrowed from the same device of the lender; if the system had no room to open the device,
  // nothing until it is passed again. Errors: INVALID_ARGUMENT; UNAVAILABLE for a device that is
  // not known; FAILED_PRECONDITION for another key, and for a device that could not be opened for
  // earlier loans; RESOURCE_EXHAUSTED for the loan for which there is no room to open it; ABORTED
  // for a loan that was recalled; those of PeerDeviceMemory::Import.
  absl::StatusOr<Buffer> Borrow(const rpc::PeerInfo& lender, Device& device,
                                const v1::LentBlock& block,
                                std::optional<absl::string_view> key = std::nullopt)
      PSD_EXCLUDES(mutex_);
  // `lender` wants loans back. Returns those of `loans` that are not in use here. They are not
  // borrowed later: neither they nor loans with smaller numbers, so that one number for each lender
  // is all that is remembered. What is refused for that reason alone is copied. Those that are in
  // use are returned when their last user has dropped them. Errors: RESOURCE_EXHAUSTED if
  // kMostStrangers are remembered; nothing is changed then.
  absl::StatusOr<std::vector<uint64_t>> OnRecalled(const rpc::PeerInfo& lender,
                                                   absl::Span<const uint64_t> loans)
      PSD_EXCLUDES(mutex_);
  // Returns a loan that is not wanted.
  void Decline(const rpc::PeerInfo& lender, const v1::LentBlock& block) const PSD_EXCLUDES(mutex_);
  // Whether the process of `lender` has shown a device that is kept, and lives.
  bool Knows(Incarnation lender) const PSD_EXCLUDES(mutex_);
  // Returns the process of a worker that has shown its memory of `device`; null if there is none.
  std::shared_ptr<carrier::HostProcess> ProcessOf(Incarnation worker, const Device& device) const
      PSD_EXCLUDES(mutex_);
  // Returns the device of this worker with that identity, if it may be shared; otherwise null.
  Device* OwnDevice(absl::string_view identity) const;

  // Why blocks of `lender` cannot be borrowed on `device`. Empty if they can be.
  std::string WhyNot(Incarnation lender, const Device& device) const PSD_EXCLUDES(mutex_);

 private:
  // The loans of one device that are being borrowed or were. Shared with the ends of the blocks,
  // which run on threads of the device. They must own no more: such a thread cannot end the device.
  // Thread-safe.
  class LoansOut {
   public:
    // Returns false if the loan is out already.
    bool Add(uint64_t loan) PSD_EXCLUDES(mutex_);
    void Remove(uint64_t loan) PSD_EXCLUDES(mutex_);
    bool Contains(uint64_t loan) const PSD_EXCLUDES(mutex_);

   private:
    mutable Mutex mutex_;  // leaf
    absl::flat_hash_set<uint64_t> loans_ PSD_GUARDED_BY(mutex_);
  };
  // A device of another worker.
  struct Peer {
    std::weak_ptr<carrier::HostProcess> process;
    std::string key;
    uint32_t device = 0;                       // its number at its worker
    UniqueFd fd;                               // until it is opened
    bool opening = false;                      // by a thread
    std::shared_ptr<PeerDeviceMemory> memory;  // shared with blocks; null until it is opened
    absl::Status broken;                       // why nothing is borrowed any more
    bool told = false;                         // the first loan was logged
    bool told_why_not = false;                 // the first error was logged
    const std::shared_ptr<LoansOut> out = std::make_shared<LoansOut>();
  };
  // The lender and the identity of the device.
  using PeerId = std::pair<Incarnation, std::string>;
  using Peers = std::map<PeerId, std::shared_ptr<Peer>>;

  void OnEnded(const std::weak_ptr<carrier::HostProcess>& process) PSD_EXCLUDES(mutex_);
  std::shared_ptr<Peer> Find(Incarnation lender, const Device& device) const PSD_REQUIRES(mutex_);
  // Returns the first device of `lender`; its others follow. The end if there is none.
  Peers::const_iterator FirstOf(Incarnation lender) const PSD_REQUIRES(mutex_);
  bool IsOut(Incarnation lender, uint64_t loan) const PSD_REQUIRES(mutex_);
  absl::StatusOr<std::shared_ptr<PeerDeviceMemory>> Open(Peer& peer, Device& device)
      PSD_EXCLUDES(mutex_);
  // Notes that the loan is out. Errors: those of Borrow that say that it must not be.
  absl::Status TakeOut(const rpc::PeerInfo& lender, Peer& peer, uint64_t loan) PSD_EXCLUDES(mutex_);
  // As Borrow, for a loan that is noted as out, in `memory` of `peer`.
  absl::StatusOr<Buffer> BorrowNoted(Peer& peer, Device& device, PeerDeviceMemory& memory,
                                     const v1::LentBlock& block, const Ended& ended)
      PSD_EXCLUDES(mutex_);
  absl::StatusOr<Buffer> Import(const std::shared_ptr<LoansOut>& out, PeerDeviceMemory& memory,
                                const v1::LentBlock& block, const Ended& ended);
  // Notes that a block could not be borrowed. `breaks`: nothing more is borrowed from the device.
  void NoteFailure(Peer& peer, const std::string& name, const Device& device,
                   const absl::Status& why, bool breaks) PSD_EXCLUDES(mutex_);

  const std::vector<std::shared_ptr<Device>> devices_;  // shared with the worker
  const std::shared_ptr<Logger> logger_;
  const Return give_back_;
  mutable Mutex mutex_;  // before: LoansOut
  CondVar opened_;
  // Other workers of this process have the same key, and other numbers.
  uint64_t last_offer_ PSD_GUARDED_BY(mutex_) = NewIncarnation();
  Peers peers_ PSD_GUARDED_BY(mutex_);  // their fields, too
  // For lenders that have recalled loans: earlier loans are not borrowed if they are not out.
  std::map<Incarnation, uint64_t> first_not_recalled_ PSD_GUARDED_BY(mutex_);
};

}  // namespace psd::device_loans
