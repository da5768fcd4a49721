#include "core/device_loans/lender.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "core/base/device_sharing.h"
#include "proto/psd/v1/worker.pb.h"

namespace psd::device_loans {
namespace {

std::string NewKey() {
  std::string key;
  for (int half = 0; half < 2; ++half) {
    const uint64_t random = NewIncarnation();
    key.append(reinterpret_cast<const char*>(&random), sizeof(random));
  }
  return key;
}

}  // namespace

Lender::Lender(Incarnation incarnation, std::vector<std::shared_ptr<Device>> devices,
               std::shared_ptr<Logger> logger)
    : incarnation_(incarnation), devices_(std::move(devices)), logger_(std::move(logger)) {
  for (size_t i = 0; i < devices_.size() && shown_.size() < carrier::kMostPassedDescriptors; ++i) {
    DeviceSharing* const sharing = devices_[i]->sharing();
    if (sharing == nullptr || !sharing->exports()) continue;
    absl::StatusOr<UniqueFd> fd = sharing->Descriptor();
    if (fd.ok()) {
      shown_.push_back({devices_[i].get(), static_cast<uint32_t>(i),
                        std::make_shared<const UniqueFd>(*std::move(fd))});
      continue;
    }
    logger_->Log(LogLevel::kWarning, "device_not_shared",
                 "other processes cannot read the memory of this device in place",
                 {{"device", devices_[i]->name()}, {"why", fd.status().message()}});
  }
}

std::vector<carrier::NamedDescriptor> Lender::ForPeer(
    const std::shared_ptr<carrier::HostProcess>& process) {
  std::vector<carrier::NamedDescriptor> descriptors;
  if (shown_.empty()) return descriptors;
  v1::ShownDevice name;
  name.set_incarnation(incarnation_);
  name.set_key(KeyOf(process));
  for (const Shown& shown : shown_) {
    name.set_device(shown.number);
    name.set_identity(shown.device->sharing()->identity());
    descriptors.push_back({name.SerializeAsString(), shown.fd});
  }
  return descriptors;
}

std::string Lender::KeyOf(const std::shared_ptr<carrier::HostProcess>& process) {
  std::string key = NewKey();
  {
    MutexLock lock(mutex_);
    for (const auto& [known, borrower] : borrowers_)
      if (borrower.process.lock() == process) return known;
    Borrower& borrower = borrowers_[key];
    borrower.process = process;
    borrower.name = process->name();
  }
  process->OnEnded([weak = weak_from_this(), key] {
    if (const std::shared_ptr<Lender> self = weak.lock()) self->OnEnded(key);
  });
  return key;
}

void Lender::OnEnded(const std::string& key) {
  Borrowers::node_type ended;  // destroyed after the lock is released
  {
    MutexLock lock(mutex_);
    ended = borrowers_.extract(key);
  }
  if (ended.empty() || ended.mapped().loans.empty()) return;
  logger_->Log(LogLevel::kInfo, "device_loans_ended",
               absl::StrCat(ended.mapped().name, " has ended; it had borrowed ",
                            ended.mapped().loans.size(), " blocks of devices"));
}

std::optional<v1::BorrowOffer> Lender::OfferOf(const std::shared_ptr<carrier::HostProcess>& process,
                                               const Device& device) const {
  const auto shown = std::find_if(shown_.begin(), shown_.end(),
                                  [&device](const Shown& each) { return each.device == &device; });
  if (shown == shown_.end()) return std::nullopt;
  MutexLock lock(mutex_);
  for (const auto& [key, borrower] : borrowers_) {
    if (borrower.process.lock() != process) continue;
    v1::BorrowOffer offer;
    offer.set_key(key);
    offer.set_device(shown->number);
    return offer;
  }
  return std::nullopt;
}

Device* Lender::DeviceOf(const v1::BorrowOffer& offer) const {
  for (const Shown& shown : shown_)
    if (shown.number == offer.device()) return shown.device;
  return nullptr;
}

std::vector<v1::LentBlock> Lender::Lend(const v1::BorrowOffer& offer,
                                        absl::Span<const Buffer> buffers) {
  std::vector<v1::LentBlock> lent;
  Device* const device = DeviceOf(offer);
  if (device == nullptr) return lent;
  for (size_t i = 0; i < buffers.size(); ++i) {
    const Buffer& buffer = buffers[i];
    if (buffer.place().device() != device) continue;
    const uint64_t loan = Add(offer, *device, buffer);
    if (loan == 0) break;
    const Block& whole = *buffer.block();
    absl::StatusOr<std::string> handle = device->sharing()->Export(whole);
    if (!handle.ok()) {
      Return(offer.key(), {&loan, 1});
      continue;
    }
    v1::LentBlock& block = lent.emplace_back();
    block.set_number(static_cast<uint32_t>(i));
    block.set_handle(*std::move(handle));
    block.set_block_bytes(whole.size());
    block.set_offset(static_cast<uint64_t>(buffer.data() - whole.data()));
    block.set_bytes(buffer.size());
    block.set_loan(loan);
  }
  return lent;
}

uint64_t Lender::Add(const v1::BorrowOffer& offer, Device& device, const Buffer& buffer) {
  MutexLock lock(mutex_);
  const auto found = borrowers_.find(offer.key());
  if (found == borrowers_.end()) return 0;
  Borrower& borrower = found->second;
  size_t& bytes = borrower.bytes[&device];
  const size_t most = device.budget_bytes() / kLentFraction;
  if (borrower.loans.size() >= kMostLoans || buffer.size() > most || bytes > most - buffer.size())
    return 0;
  bytes += buffer.size();
  borrower.loans.emplace(++last_loan_, Loan{buffer, offer.number()});
  return last_loan_;
}

Lent Lender::Borrower::lent() const {
  Lent all = {name, loans.size()};
  for (const auto& [device, of_device] : bytes) all.bytes += of_device;
  return all;
}

Buffer Lender::Borrower::Take(std::map<uint64_t, Loan>::iterator loan) {
  Buffer buffer = std::move(loan->second.buffer);
  bytes[buffer.place().device()] -= buffer.size();
  loans.erase(loan);
  return buffer;
}

void Lender::Return(absl::string_view key, absl::Span<const uint64_t> loans,
                    absl::Span<const uint64_t> offers) {
  const absl::flat_hash_set<uint64_t> of_offers(offers.begin(), offers.end());
  std::vector<Buffer> ended;  // destroyed after the lock is released
  MutexLock lock(mutex_);
  const auto found = borrowers_.find(key);
  if (found == borrowers_.end()) return;
  Borrower& borrower = found->second;
  for (const uint64_t loan : loans) {
    const auto out = borrower.loans.find(loan);
    if (out != borrower.loans.end()) ended.push_back(borrower.Take(out));
  }
  if (of_offers.empty()) return;
  for (auto out = borrower.loans.begin(); out != borrower.loans.end();) {
    const auto next = std::next(out);
    if (of_offers.contains(out->second.offer)) ended.push_back(borrower.Take(out));
    out = next;
  }
}

void Lender::TakeBack(absl::Span<const uint64_t> loans) {
  std::vector<Buffer> ended;  // destroyed after the lock is released
  MutexLock lock(mutex_);
  for (auto& [key, borrower] : borrowers_) {
    for (const uint64_t loan : loans) {
      const auto out = borrower.loans.find(loan);
      if (out != borrower.loans.end()) ended.push_back(borrower.Take(out));
    }
  }
}

void Lender::DropEnded(std::vector<uint64_t>& loans) const {
  MutexLock lock(mutex_);
  const auto ended = [this](uint64_t loan) PSD_REQUIRES(mutex_) {
    return std::none_of(borrowers_.begin(), borrowers_.end(),
                        [loan](const auto& each) { return each.second.loans.count(loan) > 0; });
  };
  loans.erase(std::remove_if(loans.begin(), loans.end(), ended), loans.end());
}

std::vector<Lent> Lender::lent() const {
  std::vector<Lent> all;
  MutexLock lock(mutex_);
  for (const auto& [key, borrower] : borrowers_) {
    if (!borrower.loans.empty()) all.push_back(borrower.lent());
  }
  return all;
}

Lent Lender::LentTo(absl::string_view key) const {
  MutexLock lock(mutex_);
  const auto found = borrowers_.find(key);
  return found == borrowers_.end() ? Lent() : found->second.lent();
}

}  // namespace psd::device_loans
