#include "core/device_loans/borrower.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "core/base/executor.h"
#include "core/base/status.h"
#include "proto/psd/v1/worker.pb.h"

namespace psd::device_loans {

Borrower::Borrower(std::vector<std::shared_ptr<Device>> devices, std::shared_ptr<Logger> logger,
                   Return give_back)
    : devices_(std::move(devices)), logger_(std::move(logger)), give_back_(std::move(give_back)) {}

Device* Borrower::OwnDevice(absl::string_view identity) const {
  for (const std::shared_ptr<Device>& device : devices_) {
    if (device->sharing() != nullptr && device->sharing()->identity() == identity)
      return device.get();
  }
  return nullptr;
}

absl::Status Borrower::OnPassed(const std::shared_ptr<carrier::HostProcess>& process,
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
    if (peers_.count(id) != 0) return absl::OkStatus();
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
    if (const std::shared_ptr<Borrower> self = weak.lock()) self->OnEnded(ended);
  });
  return absl::OkStatus();
}

void Borrower::OnEnded(const std::weak_ptr<carrier::HostProcess>& process) {
  std::vector<std::shared_ptr<Peer>> ended;  // destroyed after the lock is released
  const std::shared_ptr<carrier::HostProcess> which = process.lock();
  MutexLock lock(mutex_);
  for (auto it = peers_.begin(); it != peers_.end();) {
    if (it->second->process.lock() != which) {
      ++it;
      continue;
    }
    ended.push_back(std::move(it->second));
    it = peers_.erase(it);
  }
}

std::shared_ptr<Borrower::Peer> Borrower::Find(Incarnation lender, const Device& device) const {
  // The device is one of this worker's that are shared, or has no memory to import.
  DeviceSharing* const sharing = const_cast<Device&>(device).sharing();
  if (sharing == nullptr) return nullptr;
  const auto found = peers_.find({lender, sharing->identity()});
  return found == peers_.end() ? nullptr : found->second;
}

std::optional<v1::BorrowOffer> Borrower::OfferTo(Incarnation lender, Device* device) {
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

void Borrower::Withdraw(const rpc::PeerInfo& lender, const v1::BorrowOffer& offer) const {
  give_back_({lender, offer.key(), /*loan=*/0, offer.number()});
}

std::string Borrower::WhyNot(Incarnation lender, const Device& device) const {
  MutexLock lock(mutex_);
  const std::shared_ptr<Peer> peer = Find(lender, device);
  if (peer != nullptr) return std::string(peer->broken.message());
  return absl::StrCat("it has not shown its memory of ", device.name(),
                      " to this process: it may be on another device or host, have no link through "
                      "shared memory, or not share devices");
}

absl::StatusOr<std::shared_ptr<PeerDeviceMemory>> Borrower::Open(Peer& peer, Device& device) {
  UniqueFd fd;
  {
    ScopedBlocking blocking;
    MutexLock lock(mutex_);
    while (peer.opening) opened_.Wait(mutex_);
    if (!peer.broken.ok()) return peer.broken;
    if (peer.memory != nullptr) return peer.memory;
    peer.opening = true;
    fd = std::move(peer.fd);
  }
  absl::StatusOr<std::shared_ptr<PeerDeviceMemory>> memory = device.sharing()->Open(std::move(fd));
  MutexLock lock(mutex_);
  peer.opening = false;
  if (memory.ok()) {
    peer.memory = *memory;
  } else {
    peer.broken = memory.status();  // the descriptor is gone
  }
  opened_.NotifyAll();
  return memory;
}

absl::StatusOr<Buffer> Borrower::Import(PeerDeviceMemory& memory, const v1::LentBlock& block,
                                        Ended ended) const {
  const bool fits = block.offset() <= block.block_bytes() &&
                    block.bytes() <= block.block_bytes() - block.offset();
  if (block.bytes() == 0 || !fits || block.handle().size() > DeviceSharing::kMostHandleBytes) {
    give_back_(std::move(ended));
    return absl::InvalidArgumentError(
        absl::StrCat("a loan of ", block.bytes(), " bytes from ", block.offset(), " of a block of ",
                     block.block_bytes(), " whose handle has ", block.handle().size(),
                     " bytes; at most ", DeviceSharing::kMostHandleBytes, " are expected"));
  }
  absl::StatusOr<std::shared_ptr<Block>> imported = memory.Import(
      block.handle(), block.block_bytes(), [give_back = give_back_, ended] { give_back(ended); });
  if (!imported.ok()) {
    give_back_(std::move(ended));
    return imported.status();
  }
  const Block& whole = **imported;
  return Buffer(*imported, whole.data() + block.offset(), block.bytes(), &whole);
}

absl::StatusOr<Buffer> Borrower::Borrow(const rpc::PeerInfo& lender, Device& device,
                                        const v1::LentBlock& block) {
  const std::string& name = lender.name;
  std::shared_ptr<Peer> peer;
  {
    MutexLock lock(mutex_);
    peer = Find(lender.incarnation, device);
  }
  // Its process has ended, and nobody waits for the loan.
  if (peer == nullptr)
    return absl::UnavailableError(absl::StrCat("the process of ", name, " has ended"));
  Ended ended = {lender, peer->key, block.loan()};
  absl::StatusOr<std::shared_ptr<PeerDeviceMemory>> memory = Open(*peer, device);
  if (!memory.ok()) {
    give_back_(std::move(ended));
    NoteFailure(*peer, name, device, memory.status());
    return memory.status();
  }
  absl::StatusOr<Buffer> borrowed = Import(**memory, block, std::move(ended));
  if (!borrowed.ok()) {
    NoteFailure(*peer, name, device, borrowed.status());
    return borrowed;
  }
  bool first = false;
  {
    MutexLock lock(mutex_);
    first = !std::exchange(peer->told, true);
  }
  if (first) {
    logger_->Log(
        LogLevel::kInfo, "device_memory_shared",
        absl::StrCat("reads the memory that ", name, " has on ", device.name(), " in place"),
        {{"peer", name}, {"device", device.name()}});
  }
  return borrowed;
}

void Borrower::NoteFailure(Peer& peer, const std::string& name, const Device& device,
                           const absl::Status& why) {
  {
    MutexLock lock(mutex_);
    // What the system refuses now it may grant later.
    if (!absl::IsResourceExhausted(why)) peer.broken.Update(why);
    if (std::exchange(peer.told_why_not, true)) return;
  }
  logger_->Log(
      LogLevel::kWarning, "device_memory_not_shared",
      absl::StrCat("memory that ", name, " has on ", device.name(), " is copied: ", why.message()),
      {{"peer", name}, {"device", device.name()}});
}

void Borrower::Decline(const rpc::PeerInfo& lender, const v1::LentBlock& block) const {
  // The blocks that a lender lends have the key of its process, whichever device they are on.
  std::string key;
  {
    MutexLock lock(mutex_);
    const auto found = peers_.lower_bound({lender.incarnation, ""});
    if (found == peers_.end() || found->first.first != lender.incarnation) return;
    key = found->second->key;
  }
  give_back_({lender, std::move(key), block.loan()});
}

bool Borrower::Knows(Incarnation lender) const {
  MutexLock lock(mutex_);
  const auto found = peers_.lower_bound({lender, ""});
  return found != peers_.end() && found->first.first == lender;
}

}  // namespace psd::device_loans
