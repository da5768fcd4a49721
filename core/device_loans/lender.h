#pragma once

// The blocks of this worker's devices that other processes read in place.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/base/buffer.h"
#include "core/base/device.h"
#include "core/base/ids.h"
#include "core/base/log.h"
#include "core/base/mutex.h"
#include "core/base/unique_fd.h"
#include "core/carrier/passed_descriptors.h"

namespace psd::v1 {
class BorrowOffer;
class LentBlock;
}  // namespace psd::v1

namespace psd::device_loans {

// What one process has borrowed from this worker.
struct Lent {
  std::string process;
  size_t loans = 0;
  size_t bytes = 0;
};

// Shows the devices of this worker to the processes at the other ends of its links, and lends them
// blocks. Each process gets a key, by which it borrows: 16 random bytes that no other process has
// been told. A loan holds its buffer, and with it the version that is pinned, until the borrower
// returns it or its process ends. The end of a session or a link does not end it, because the
// process may still read the block. Thread-safe.
class Lender : public std::enable_shared_from_this<Lender> {
 public:
  // The bounds for one process. Above them nothing more is lent to it.
  static constexpr size_t kMostLoans = 4096;
  // One process may borrow 1 / kLentFraction of the budget of a device. There is no bound for all
  // processes together, because several of them usually borrow the same blocks.
  static constexpr size_t kLentFraction = 4;

  // `devices` are those that may be shared. A device whose memory the system does not export is
  // not shown, which is logged.
  Lender(Incarnation incarnation, std::vector<std::shared_ptr<Device>> devices,
         std::shared_ptr<Logger> logger);
  Lender(const Lender&) = delete;
  Lender& operator=(const Lender&) = delete;

  // Returns the descriptors by which `process` opens the devices, named by v1::ShownDevice.
  std::vector<carrier::NamedDescriptor> ForPeer(
      const std::shared_ptr<carrier::HostProcess>& process) PSD_EXCLUDES(mutex_);

  // Returns what stands for an offer of `process` to borrow on `device`, for a message that no
  // request has asked for. Nothing if the process was not shown that device. Offers of this kind
  // all have the number 0.
  std::optional<v1::BorrowOffer> OfferOf(const std::shared_ptr<carrier::HostProcess>& process,
                                         const Device& device) const PSD_EXCLUDES(mutex_);
  // Returns the device of this worker that `offer` means; null if that is not shown.
  Device* DeviceOf(const v1::BorrowOffer& offer) const;
  // Lends those of `buffers` that are on the device of `offer`, as far as the bounds allow. Returns
  // a block for each of them, whose number is that in `buffers`. Empty if the key is not known.
  // Requires: the borrower gets the blocks after the work that writes them is done; nobody writes
  // the buffers as long as they are held.
  std::vector<v1::LentBlock> Lend(const v1::BorrowOffer& offer, absl::Span<const Buffer> buffers)
      PSD_EXCLUDES(mutex_);
  // Ends loans, and all loans of `offers`. Those that are not out, and loans of another key, are
  // left alone: a repeated message may return a loan twice.
  void Return(absl::string_view key, absl::Span<const uint64_t> loans,
              absl::Span<const uint64_t> offers = {}) PSD_EXCLUDES(mutex_);
  // Ends loans that nobody has borrowed or will borrow, whatever their keys. Those that are not out
  // are left alone.
  void TakeBack(absl::Span<const uint64_t> loans) PSD_EXCLUDES(mutex_);

  // Removes those of `loans` that have ended.
  void DropEnded(std::vector<uint64_t>& loans) const PSD_EXCLUDES(mutex_);

  // What each process has borrowed, without those that have nothing.
  std::vector<Lent> lent() const PSD_EXCLUDES(mutex_);
  // What the process with this key has borrowed.
  Lent LentTo(absl::string_view key) const PSD_EXCLUDES(mutex_);

 private:
  struct Shown {
    Device* device = nullptr;
    uint32_t number = 0;  // among the devices of this worker
    std::shared_ptr<const UniqueFd> fd;
  };
  struct Loan {
    Buffer buffer;
    uint64_t offer = 0;  // its number
  };
  struct Borrower {
    std::weak_ptr<carrier::HostProcess> process;  // lives as long as it is watched
    std::string name;
    std::map<uint64_t, Loan> loans;
    absl::flat_hash_map<Device*, size_t> bytes;  // of the loans

    Lent lent() const;
    // Takes out a loan.
    Buffer Take(std::map<uint64_t, Loan>::iterator loan);
  };
  using Borrowers = absl::flat_hash_map<std::string, Borrower>;

  // Returns the key of the process, and adds it if it is new.
  std::string KeyOf(const std::shared_ptr<carrier::HostProcess>& process) PSD_EXCLUDES(mutex_);
  void OnEnded(const std::string& key) PSD_EXCLUDES(mutex_);
  // Returns 0 if the key is not known or there is no room.
  uint64_t Add(const v1::BorrowOffer& offer, Device& device, const Buffer& buffer)
      PSD_EXCLUDES(mutex_);

  const Incarnation incarnation_;
  const std::vector<std::shared_ptr<Device>> devices_;  // shared with the worker
  const std::shared_ptr<Logger> logger_;
  std::vector<Shown> shown_;  // fixed by the constructor

  mutable Mutex mutex_;  // leaf; buffers are dropped outside
  uint64_t last_loan_ PSD_GUARDED_BY(mutex_) = 0;
  Borrowers borrowers_ PSD_GUARDED_BY(mutex_);  // by key
};

}  // namespace psd::device_loans
