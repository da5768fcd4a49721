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

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
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
class Borrower : public std::enable_shared_from_this<Borrower> {
 public:
  // The most devices of one process that are kept.
  static constexpr size_t kMostOfProcess = 64;

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
  Borrower(std::vector<std::shared_ptr<Device>> devices, std::shared_ptr<Logger> logger,
           Return give_back);
  Borrower(const Borrower&) = delete;
  Borrower& operator=(const Borrower&) = delete;

  // Keeps a descriptor that `process` has passed, if it is of one of this worker's devices. Another
  // descriptor of the same device and worker is closed, and so are those of a process that has
  // shown kMostOfProcess already, for example those of workers that it ran before: what these
  // workers have is copied. Errors: INVALID_ARGUMENT for a name that is no v1::ShownDevice.
  absl::Status OnPassed(const std::shared_ptr<carrier::HostProcess>& process,
                        const std::string& name, UniqueFd fd) PSD_EXCLUDES(mutex_);

  // Returns what a request to `lender` says so that its blocks can be borrowed on `device`. Nothing
  // if they cannot be. If no answer to the request is taken, Withdraw must be called.
  std::optional<v1::BorrowOffer> OfferTo(Incarnation lender, Device* device) PSD_EXCLUDES(mutex_);
  // Returns all that was lent for `offer`: the answer that names it may have been lost, together
  // with the session or the link.
  void Withdraw(const rpc::PeerInfo& lender, const v1::BorrowOffer& offer) const;

  // Returns the bytes of `block`, on `device`, which `lender` has lent after it was offered that.
  // In every case the loan is returned, after an error at once. May wait for another thread that
  // opens the same device. The first error is logged. After an error that is not
  // RESOURCE_EXHAUSTED, nothing more is borrowed from the same device of the lender. Errors:
  // INVALID_ARGUMENT; UNAVAILABLE; those of PeerDeviceMemory::Import.
  absl::StatusOr<Buffer> Borrow(const rpc::PeerInfo& lender, Device& device,
                                const v1::LentBlock& block) PSD_EXCLUDES(mutex_);
  // Returns a loan that is not wanted.
  void Decline(const rpc::PeerInfo& lender, const v1::LentBlock& block) const PSD_EXCLUDES(mutex_);
  // Whether the process of `lender` has shown a device that is kept, and lives.
  bool Knows(Incarnation lender) const PSD_EXCLUDES(mutex_);

  // Why blocks of `lender` cannot be borrowed on `device`. Empty if they can be.
  std::string WhyNot(Incarnation lender, const Device& device) const PSD_EXCLUDES(mutex_);

 private:
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
  };
  // The lender and the identity of the device.
  using PeerId = std::pair<Incarnation, std::string>;
  using Peers = std::map<PeerId, std::shared_ptr<Peer>>;

  Device* OwnDevice(absl::string_view identity) const;
  void OnEnded(const std::weak_ptr<carrier::HostProcess>& process) PSD_EXCLUDES(mutex_);
  std::shared_ptr<Peer> Find(Incarnation lender, const Device& device) const PSD_REQUIRES(mutex_);
  absl::StatusOr<std::shared_ptr<PeerDeviceMemory>> Open(Peer& peer, Device& device)
      PSD_EXCLUDES(mutex_);
  absl::StatusOr<Buffer> Import(PeerDeviceMemory& memory, const v1::LentBlock& block,
                                Ended ended) const;
  // Notes that a block could not be borrowed.
  void NoteFailure(Peer& peer, const std::string& name, const Device& device,
                   const absl::Status& why) PSD_EXCLUDES(mutex_);

  const std::vector<std::shared_ptr<Device>> devices_;  // shared with the worker
  const std::shared_ptr<Logger> logger_;
  const Return give_back_;
  mutable Mutex mutex_;  // leaf
  CondVar opened_;
  // Other workers of this process have the same key, and other numbers.
  uint64_t last_offer_ PSD_GUARDED_BY(mutex_) = NewIncarnation();
  Peers peers_ PSD_GUARDED_BY(mutex_);  // their fields, too
};

}  // namespace psd::device_loans
