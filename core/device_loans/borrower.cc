#include "core/device_loans/borrower.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "core/base/executor.h"
#include "core/base/status.h"
#include "proto/psd/v1/worker.pb.h"

namespace psd::device_loans {
namespace {

// Notes why nothing more is borrowed from a device. A lack of room passes when the device is shown
// again, so it hides no other reason.
void Break(const absl::Status& why, absl::Status& broken) {
  if (absl::IsResourceExhausted(broken)) broken = absl::OkStatus();
  broken.Update(why);
}

}  // namespace

bool DeviceBorrower::LoansOut::Add(uint64_t loan) {
  MutexLock lock(mutex_);
  return loans_.insert(loan).second;
}

void DeviceBorrower::LoansOut::Remove(uint64_t loan) {
  MutexLock lock(mutex_);
  loans_.erase(loan);
}

bool DeviceBorrower::LoansOut::Contains(uint64_t loan) const {
  MutexLock lock(mutex_);
  return loans_.contains(loan);
}

DeviceBorrower::DeviceBorrower(std::vector<std::shared_ptr<Device>> devices,
                               std::shared_ptr<Logger> logger, Return give_back)
    : devices_(std::move(devices)), logger_(std::move(logger)), give_back_(std::move(give_back)) {}

Device* DeviceBorrower::OwnDevice(absl::string_view identity) const {
  for (const std::shared_ptr<Device>& device : devices_) {
    if (device->sharing() != nullptr && device->sharing()->identity() == identity)
      return device.get();
  }
  return nullptr;
}

absl::Status DeviceBorrower::OnPassed(const std::shared_ptr<carrier::HostProcess>& process,
                                      const std::string& name, UniqueFd fd) {
  v1::ShownDevice shown;
  if (!shown.ParseFromString(name) || shown.incarnation() == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("the ", name.size(), " bytes beside a descriptor name no device"));
  }
  if (OwnDevice(shown.identity()) == nullptr) return absl::OkStatus();
  bool first = false;
  {
    MutexLock lock(mutex_);
    const auto of_process = [&process](const auto& each) {
      return each.second->process.lock() == process;
    };
    const auto known = std::count_if(peers_.begin(), peers_.end(), of_process);
    const PeerId id = {shown.incarnation(), shown.identity()};
    if (const auto same = peers_.find(id); same != peers_.end()) {
      Peer& peer = *same->second;
      // Its descriptor is gone: the system had no room to open it, or may have none now.
      const bool again =
          absl::IsResourceExhausted(peer.broken) || (peer.opening && peer.broken.ok());
      if (!again || peer.process.lock() != process || peer.key != shown.key())
        return absl::OkStatus();
      peer.fd = std::move(fd);
      peer.broken = absl::OkStatus();
      return absl::OkStatus();
    }
    if (static_cast<size_t>(known) >= kMostOfProcess) return absl::OkStatus();
    auto peer = std::make_shared<Peer>();
    peer->process = process;
    peer->key = shown.key();
    peer->device = shown.device();
    peer->fd = std::move(fd);
    peers_.emplace(id, std::move(peer));
    first = known == 0;
  }
  if (!first) return absl::OkStatus();
  process->OnEnded([weak = weak_from_this(), ended = std::weak_ptr(process)] {
    if (const std::shared_ptr<DeviceBorrower> self = weak.lock()) self->OnEnded(ended);
  });
  return absl::OkStatus();
}

void DeviceBorrower::OnEnded(const std::weak_ptr<carrier::HostProcess>& process) {
  std::vector<std::shared_ptr<Peer>> ended;  // destroyed after the lock is released
  const std::shared_ptr<carrier::HostProcess> which = process.lock();
  MutexLock lock(mutex_);
  for (auto it = peers_.begin(); it != peers_.end();) {
    if (it->second->process.lock() != which) {
      ++it;
      continue;
    }
    const Incarnation lender = it->first.first;
    ended.push_back(std::move(it->second));
    it = peers_.erase(it);
    if (FirstOf(lender) == peers_.end()) first_not_recalled_.erase(lender);
  }
}

DeviceBorrower::Peers::const_iterator DeviceBorrower::FirstOf(Incarnation lender) const {
  const auto first = peers_.lower_bound({lender, ""});
  return first != peers_.end() && first->first.first == lender ? first : peers_.end();
}

bool DeviceBorrower::IsOut(Incarnation lender, uint64_t loan) const {
  for (auto it = FirstOf(lender); it != peers_.end() && it->first.first == lender; ++it)
    if (it->second->out->Contains(loan)) return true;
  return false;
}

std::shared_ptr<DeviceBorrower::Peer> DeviceBorrower::Find(Incarnation lender,
                                                           const Device& device) const {
  // The device is one of this worker's that are shared, or has no memory to import.
  DeviceSharing* const sharing = const_cast<Device&>(device).sharing();
  if (sharing == nullptr) return nullptr;
  const auto found = peers_.find({lender, sharing->identity()});
  return found == peers_.end() ? nullptr : found->second;
}

std::optional<v1::BorrowOffer> DeviceBorrower::OfferTo(Incarnation lender, Device* device) {
  if (device == nullptr) return std::nullopt;
  MutexLock lock(mutex_);
  const std::shared_ptr<Peer> peer = Find(lender, *device);
  if (peer == nullptr || !peer->broken.ok()) return std::nullopt;
  v1::BorrowOffer offer;
  offer.set_key(peer->key);
  offer.set_device(peer->device);
  offer.set_number(++last_offer_);
  return offer;
}

void DeviceBorrower::Withdraw(const rpc::PeerInfo& lender, const v1::BorrowOffer& offer) const {
  give_back_({lender, offer.key(), /*loan=*/0, offer.number()});
}

std::string DeviceBorrower::WhyNot(Incarnation lender, const Device& device) const {
  MutexLock lock(mutex_);
  const std::shared_ptr<Peer> peer = Find(lender, device);
  if (peer != nullptr) return std::string(peer->broken.message());
  return absl::StrCat("it has not shown its memory of ", device.name(),
                      " to this process: it may be on another device or host, have no link through "
                      "shared memory, or not share devices");
}

absl::StatusOr<std::shared_ptr<PeerDeviceMemory>> DeviceBorrower::Open(Peer& peer, Device& device) {
  UniqueFd fd;
  {
    ScopedBlocking blocking;
    MutexLock lock(mutex_);
    while (peer.opening) opened_.Wait(mutex_);
    // An earlier lack of room does not pass: the descriptor is gone until it is passed again.
    if (absl::IsResourceExhausted(peer.broken))
      return absl::FailedPreconditionError(peer.broken.message());
    if (!peer.broken.ok()) return peer.broken;
    if (peer.memory != nullptr) return peer.memory;
    peer.opening = true;
    fd = std::move(peer.fd);
  }
  absl::StatusOr<std::shared_ptr<PeerDeviceMemory>> memory = device.sharing()->Open(std::move(fd));
  UniqueFd unused;  // closed after the lock is released
  MutexLock lock(mutex_);
  peer.opening = false;
  if (memory.ok()) peer.memory = *memory;
  // Another descriptor may have come meanwhile, for which there may be room.
  const bool again =
      absl::IsResourceExhausted(memory.status()) && peer.broken.ok() && peer.fd.valid();
  if (!again) {
    Break(memory.status(), peer.broken);
    unused = std::move(peer.fd);
  }
  opened_.NotifyAll();
  return memory;
}

absl::Status DeviceBorrower::TakeOut(const rpc::PeerInfo& lender, Peer& peer, uint64_t loan) {
  if (loan == 0)
    return absl::InvalidArgumentError(absl::StrCat(lender.name, " lends a block without a number"));
  MutexLock lock(mutex_);  // so that the loan is not recalled between the checks
  const auto recalled = first_not_recalled_.find(lender.incarnation);
  const bool late = recalled != first_not_recalled_.end() && loan < recalled->second;
  if (late && !peer.out->Contains(loan))
    return absl::AbortedError(absl::StrCat(lender.name, " has recalled its loan ", loan));
  // A block may end between the check and Add, and a recalled loan is never taken again.
  if (!late && peer.out->Add(loan)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(lender.name, " lends its loan ", loan, " twice"));
}

absl::StatusOr<std::vector<uint64_t>> DeviceBorrower::OnRecalled(const rpc::PeerInfo& lender,
                                                                 absl::Span<const uint64_t> loans) {
  std::vector<uint64_t> unused;
  if (loans.empty()) return unused;
  const uint64_t last = *std::max_element(loans.begin(), loans.end());
  const uint64_t next =
      std::max(last, last + 1);  // the largest number has no next one; no lender uses it
  MutexLock lock(mutex_);
  // A lender that has shown nothing may still do so, before the message comes that names the loans.
  const bool stranger = FirstOf(lender.incarnation) == peers_.end() &&
                        first_not_recalled_.count(lender.incarnation) == 0;
  if (stranger && first_not_recalled_.size() >= kMostStrangers) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the loans of ", lender.name, " are not given back: ", kMostStrangers,
        " workers have recalled loans here; those of ", lender.name, " end with this process"));
  }
  uint64_t& first = first_not_recalled_[lender.incarnation];
  first = std::max(first, next);
  for (const uint64_t loan : loans)
    if (!IsOut(lender.incarnation, loan)) unused.push_back(loan);
  return unused;
}

absl::StatusOr<Buffer> DeviceBorrower::Import(const std::shared_ptr<LoansOut>& out,
                                              PeerDeviceMemory& memory, const v1::LentBlock& block,
                                              const Ended& ended) {
  const bool fits = block.offset() <= block.block_bytes() &&
                    block.bytes() <= block.block_bytes() - block.offset();
  if (block.bytes() == 0 || !fits || block.handle().size() > DeviceSharing::kMostHandleBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a loan of ", block.bytes(), " bytes from ", block.offset(), " of a block of ",
                     block.block_bytes(), " whose handle has ", block.handle().size(),
                     " bytes; at most ", DeviceSharing::kMostHandleBytes, " are expected"));
  }
  absl::StatusOr<std::shared_ptr<Block>> imported =
      memory.Import(block.handle(), block.block_bytes(), [out, give_back = give_back_, ended] {
        out->Remove(ended.loan);
        give_back(ended);
      });
  PSD_RETURN_IF_ERROR(imported.status());
  const Block& whole = **imported;
  return Buffer(*imported, whole.data() + block.offset(), block.bytes(), &whole);
}

absl::StatusOr<Buffer> DeviceBorrower::Borrow(const rpc::PeerInfo& lender, Device& device,
                                              const v1::LentBlock& block,
                                              std::optional<absl::string_view> key) {
  const std::string& name = lender.name;
  std::shared_ptr<Peer> peer;
  {
    MutexLock lock(mutex_);
    peer = Find(lender.incarnation, device);
  }
  if (peer == nullptr) {
    return absl::UnavailableError(absl::StrCat(name, " has not shown its memory of ", device.name(),
                                               " to this process, or its process has ended"));
  }
  // A process that passes its own devices in the name of another worker is taken for that worker.
  // The loan would end with that process, and not with this one.
  if (key.has_value() && *key != peer->key) {
    return absl::FailedPreconditionError(absl::StrCat(name, " has lent its loan ", block.loan(),
                                                      " to another process than this one"));
  }
  const Ended ended = {lender, peer->key, block.loan()};
  const absl::Status out = TakeOut(lender, *peer, block.loan());
  if (!out.ok()) {
    // A loan that is out already has a user, who returns it.
    if (absl::IsAborted(out)) {
      give_back_(ended);
    } else {
      NoteFailure(*peer, name, device, out, /*breaks=*/true);
    }
    return out;
  }
  const absl::StatusOr<std::shared_ptr<PeerDeviceMemory>> memory = Open(*peer, device);
  absl::StatusOr<Buffer> borrowed = memory.ok() ? BorrowNoted(*peer, device, **memory, block, ended)
                                                : absl::StatusOr<Buffer>(memory.status());
  if (!borrowed.ok()) {
    peer->out->Remove(ended.loan);
    give_back_(ended);
    // The system may grant later what it refuses now. Open has noted its own errors.
    const bool breaks = memory.ok() && !absl::IsResourceExhausted(borrowed.status());
    NoteFailure(*peer, name, device, borrowed.status(), breaks);
  }
  return borrowed;
}

absl::StatusOr<Buffer> DeviceBorrower::BorrowNoted(Peer& peer, Device& device,
                                                   PeerDeviceMemory& memory,
                                                   const v1::LentBlock& block, const Ended& ended) {
  const std::string& name = ended.lender.name;
  PSD_ASSIGN_OR_RETURN(Buffer borrowed, Import(peer.out, memory, block, ended));
  bool first = false;
  {
    MutexLock lock(mutex_);
    first = !std::exchange(peer.told, true);
  }
  if (first) {
    logger_->Log(
        LogLevel::kInfo, "device_memory_shared",
        absl::StrCat("reads the memory that ", name, " has on ", device.name(), " in place"),
        {{"peer", name}, {"device", device.name()}});
  }
  return borrowed;
}

void DeviceBorrower::NoteFailure(Peer& peer, const std::string& name, const Device& device,
                                 const absl::Status& why, bool breaks) {
  {
    MutexLock lock(mutex_);
    if (breaks) Break(why, peer.broken);
    if (std::exchange(peer.told_why_not, true)) return;
  }
  logger_->Log(
      LogLevel::kWarning, "device_memory_not_shared",
      absl::StrCat("memory that ", name, " has on ", device.name(), " is copied: ", why.message()),
      {{"peer", name}, {"device", device.name()}});
}

void DeviceBorrower::Decline(const rpc::PeerInfo& lender, const v1::LentBlock& block) const {
  // The blocks that a lender lends have the key of its process, whichever device they are on.
  std::string key;
  {
    MutexLock lock(mutex_);
    const auto found = FirstOf(lender.incarnation);
    if (found == peers_.end() || block.loan() == 0) return;
    key = found->second->key;
  }
  give_back_({lender, std::move(key), block.loan()});
}

std::shared_ptr<carrier::HostProcess> DeviceBorrower::ProcessOf(Incarnation worker,
                                                                const Device& device) const {
  MutexLock lock(mutex_);
  const std::shared_ptr<Peer> peer = Find(worker, device);
  return peer == nullptr ? nullptr : peer->process.lock();
}

bool DeviceBorrower::Knows(Incarnation lender) const {
  MutexLock lock(mutex_);
  return FirstOf(lender) != peers_.end();
}

}  // namespace psd::device_loans
