#include "core/services/checkpoint/transfer_table.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "core/base/remedy.h"
#include "core/base/status.h"

namespace psd::services {
namespace {

absl::Status Unknown(GlobalId id) {
  return WithRemedy(absl::NotFoundError(absl::StrCat("no transfer ", id.counter,
                                                     " of this session is under way here")),
                    "its session may have ended: start again");
}

absl::Status NotToBeFilled() {
  return WithRemedy(absl::FailedPreconditionError(
                        "this transfer holds an export of the owner, which nobody may write to"),
                    "make room first");
}

}  // namespace

absl::Status Transfer::CheckRange(uint64_t array, uint64_t first_byte, uint64_t bytes) const {
  if (array >= arrays_.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("array ", array, " of a transfer that has ", arrays_.size()));
  }
  const uint64_t size = arrays_[array].NumBytes();
  if (first_byte <= size && bytes <= size - first_byte) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(bytes, " bytes from ", first_byte,
                                                 " of an array of a transfer that has ", size));
}

absl::StatusOr<Buffer> Transfer::Piece(uint64_t array, uint64_t first_byte, uint64_t bytes) const {
  PSD_RETURN_IF_ERROR(CheckRange(array, first_byte, bytes));
  return arrays_[array].AsBuffer().Slice(first_byte, bytes);
}

absl::Status Transfer::Fill(uint64_t array, uint64_t first_byte, const Buffer& bytes) {
  if (direction_ != Direction::kIn) return NotToBeFilled();
  PSD_RETURN_IF_ERROR(CheckRange(array, first_byte, bytes.size()));
  if (!bytes.empty())
    std::memcpy(arrays_[array].mutable_raw_data() + first_byte, bytes.data(), bytes.size());
  return absl::OkStatus();
}

absl::Status TransferTable::Put(GlobalId session, GlobalId id, std::shared_ptr<Transfer> transfer) {
  // The swap puts an earlier transfer into `transfer`, so that it is freed after the lock.
  MutexLock lock(mutex_);
  OfSession& of_session = transfers_[session];
  if (of_session.size() < kPerSession || of_session.count(id) > 0) {
    std::swap(of_session[id], transfer);
    return absl::OkStatus();
  }
  return WithRemedy(absl::ResourceExhaustedError(
                        absl::StrCat("this worker has ", of_session.size(),
                                     " large values on their way in and out here already")),
                    "run fewer saves and loads at the same time");
}

absl::StatusOr<std::shared_ptr<Transfer>> TransferTable::Find(GlobalId session, GlobalId id) const {
  MutexLock lock(mutex_);
  auto found = transfers_.find(session);
  if (found == transfers_.end()) return Unknown(id);
  auto transfer = found->second.find(id);
  if (transfer == found->second.end()) return Unknown(id);
  return transfer->second;
}

absl::StatusOr<std::shared_ptr<Transfer>> TransferTable::Take(GlobalId session, GlobalId id) {
  MutexLock lock(mutex_);
  auto found = transfers_.find(session);
  if (found == transfers_.end()) return Unknown(id);
  auto transfer = found->second.find(id);
  if (transfer == found->second.end()) return Unknown(id);
  if (transfer->second->direction() != Transfer::Direction::kIn) return NotToBeFilled();
  // Only this table hands out handles, under this lock.
  if (transfer->second.use_count() > 1)
    return absl::FailedPreconditionError("pieces of this transfer are still arriving");
  std::shared_ptr<Transfer> taken = std::move(transfer->second);
  found->second.erase(transfer);
  if (found->second.empty()) transfers_.erase(found);
  return taken;
}

void TransferTable::Release(GlobalId session, GlobalId id) {
  std::shared_ptr<Transfer> released;
  MutexLock lock(mutex_);
  auto found = transfers_.find(session);
  if (found == transfers_.end()) return;
  auto transfer = found->second.find(id);
  if (transfer == found->second.end()) return;
  released = std::move(transfer->second);
  found->second.erase(transfer);
  if (found->second.empty()) transfers_.erase(found);
}

void TransferTable::OnSessionEnded(GlobalId session) {
  OfSession released;
  MutexLock lock(mutex_);
  auto found = transfers_.find(session);
  if (found == transfers_.end()) return;
  released = std::move(found->second);
  transfers_.erase(found);
}

}  // namespace psd::services
