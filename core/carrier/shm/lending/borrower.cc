#include "core/carrier/shm/lending/borrower.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/sealed_memory.h"
#include "core/base/status.h"
#include "core/carrier/descriptor_reserve.h"
#include "core/carrier/shm/lending/limits.h"

namespace psd::carrier {
namespace {

// Tables of up to this size are not charged, because the number of leases is bounded.
constexpr size_t kSmallTableBytes = size_t{4} << 10;

template <typename... Args>
absl::Status Wrong(const Args&... args) {
  return absl::InvalidArgumentError(absl::StrCat("the peer lends in a wrong way: ", args...));
}

// The part of a lent message that is in its frame. The other buffers are empty.
MessageFrame PartInFrame(const LentFrame& frame) {
  MessageFrame part;
  part.shape.header_bytes = frame.header_bytes;
  part.shape.buffer_bytes.reserve(frame.buffers.size());
  for (const LentBuffer& buffer : frame.buffers) {
    part.shape.buffer_bytes.push_back(buffer.segment == 0 ? buffer.bytes : 0);
  }
  part.payload = frame.payload;
  return part;
}

}  // namespace

Borrower::Borrower(std::shared_ptr<NoteBox> notes, std::shared_ptr<Quota> of_peer,
                   std::shared_ptr<Quota> of_carrier, std::shared_ptr<Executor> unmapper,
                   ReceiveMemory memory)
    : notes_(std::move(notes)),
      of_peer_(std::move(of_peer)),
      of_carrier_(std::move(of_carrier)),
      unmapper_(std::move(unmapper)),
      memory_(std::move(memory)) {}

absl::StatusOr<std::shared_ptr<const PeerMapping>> Borrower::Map(const PassedSegment& passed,
                                                                 const UniqueFd& fd) {
  const auto none = std::shared_ptr<const PeerMapping>();
  if (!fd.valid() || !CheckDescriptor(fd.get(), DescriptorLimit()).ok()) return none;
  if (!of_peer_->Take(passed.bytes)) return none;
  if (!of_carrier_->Take(passed.bytes)) {
    of_peer_->Give(passed.bytes);
    return none;
  }
  absl::StatusOr<MemoryMapping> memory = MapSealedMemory(fd, passed.bytes, "its blocks");
  if (memory.ok()) {
    return ShareMapping(*std::move(memory), of_peer_, of_carrier_, unmapper_);
  }
  of_peer_->Give(passed.bytes);
  of_carrier_->Give(passed.bytes);
  if (absl::IsResourceExhausted(memory.status())) return none;
  return memory.status();
}

absl::StatusOr<bool> Borrower::OnSegment(const PassedSegment& passed, const UniqueFd& fd) {
  if (passed.id == 0 || passed.bytes == 0) {
    return Wrong("segment ", passed.id, " of ", passed.bytes, " bytes");
  }
  {
    MutexLock lock(mutex_);
    const auto found = segments_.find(passed.id);
    if (found == segments_.end() && segments_.size() >= kMaxSegments) {
      return Wrong("more than ", kMaxSegments, " segments");
    }
    if (found != segments_.end() && found->second.state != Segment::State::kGone) {
      return Wrong("segment ", passed.id, " is passed twice");
    }
  }
  Segment segment;
  PSD_ASSIGN_OR_RETURN(segment.mapping, Map(passed, fd));
  if (segment.mapping == nullptr) segment.state = Segment::State::kDeclined;
  {
    MutexLock lock(mutex_);
    if (ended_) return false;
    const auto [place, added] = segments_.try_emplace(passed.id, std::move(segment));
    if (!added) {  // it is gone already
      segments_.erase(place);
      return true;
    }
  }
  news_.store(true, std::memory_order_release);
  return false;
}

absl::StatusOr<MemoryCharge> Borrower::ChargeTable(size_t buffers) const {
  const size_t bytes = BorrowingBytes(buffers);
  return bytes <= kSmallTableBytes ? MemoryCharge() : memory_.headers->Charge(bytes);
}

absl::StatusOr<Borrower::Outcome> Borrower::OnLent(const LentFrame& frame) {
  if (leases_.fetch_add(1) >= kMaxLeases) return Wrong("more than ", kMaxLeases, " leases");
  const MessageFrame part = PartInFrame(frame);
  absl::StatusOr<MemoryCharge> charge = ChargeTable(frame.buffers.size());
  absl::StatusOr<Message> message = charge.ok() ? AssembleWhole(part, memory_) : charge.status();
  if (!message.ok()) {
    Return(frame.lease, *notes_);
    Outcome outcome;
    outcome.refused = RefuseWhole(part, message.status());
    return outcome;
  }
  Parked parked{frame.lease, *std::move(message), frame.buffers, *std::move(charge)};
  PSD_ASSIGN_OR_RETURN(std::optional<Outcome> outcome, Settle(parked));
  if (outcome.has_value()) return *std::move(outcome);
  parked_.push_back(std::move(parked));
  return Outcome();
}

absl::StatusOr<std::optional<Borrower::Outcome>> Borrower::Settle(Parked& parked) {
  Outcome outcome;
  Mappings mappings(parked.buffers.size());
  {
    MutexLock lock(mutex_);
    bool all = true;
    for (size_t i = 0; i < parked.buffers.size(); ++i) {
      const LentBuffer& buffer = parked.buffers[i];
      if (buffer.segment == 0) continue;
      const auto found = segments_.find(buffer.segment);
      if (found == segments_.end() || found->second.state == Segment::State::kGone) {
        all = false;
      } else if (found->second.state == Segment::State::kDeclined) {
        outcome.declined = DeclinedFrame{parked.lease, buffer.segment};
      } else {
        mappings[i] = found->second.mapping;
        const size_t bytes = mappings[i]->bytes();
        if (buffer.offset > bytes || buffer.bytes > bytes - buffer.offset) {
          return Wrong(buffer.bytes, " bytes at ", buffer.offset, " of segment ", buffer.segment,
                       ", which has ", bytes);
        }
      }
    }
    if (!all && !outcome.declined.has_value()) return std::optional<Outcome>();
  }
  if (outcome.declined.has_value()) {
    leases_.fetch_sub(1);
  } else {
    for (const LentBuffer& buffer : parked.buffers) {
      if (buffer.segment != 0) outcome.borrowed_bytes += buffer.bytes;
    }
    Borrow(parked.message, parked.lease, parked.buffers, std::move(mappings),
           std::move(parked.charge), notes_);
    outcome.message = std::move(parked.message);
  }
  return std::optional<Outcome>(std::move(outcome));
}

absl::StatusOr<std::vector<Borrower::Outcome>> Borrower::TakeReady() {
  news_.exchange(false, std::memory_order_acquire);
  std::vector<Outcome> ready;
  std::vector<Parked> still;
  for (Parked& parked : parked_) {
    PSD_ASSIGN_OR_RETURN(std::optional<Outcome> outcome, Settle(parked));
    if (outcome.has_value()) {
      ready.push_back(*std::move(outcome));
    } else {
      still.push_back(std::move(parked));
    }
  }
  parked_ = std::move(still);
  return ready;
}

absl::StatusOr<bool> Borrower::OnGone(uint64_t id) {
  Segment segment;  // dropped after the lock
  MutexLock lock(mutex_);
  const auto found = segments_.find(id);
  if (found != segments_.end()) {
    if (found->second.state == Segment::State::kGone) {
      return Wrong("segment ", id, " is gone twice");
    }
    segment = std::move(found->second);
    segments_.erase(found);
    return true;
  }
  // Its descriptor is on the way, over the socket.
  if (segments_.size() >= kMaxSegments) return Wrong("more than ", kMaxSegments, " segments");
  segments_[id].state = Segment::State::kGone;
  return false;
}

absl::Status Borrower::LookForStall() {
  for (Parked& parked : parked_) {
    if (!std::exchange(parked.seen, true)) continue;
    return absl::DeadlineExceededError(absl::StrCat("the peer has named a segment in lease ",
                                                    parked.lease, " whose descriptor never came"));
  }
  return absl::OkStatus();
}

void Borrower::End() {
  parked_.clear();
  absl::flat_hash_map<uint64_t, Segment> segments;  // dropped after the lock
  MutexLock lock(mutex_);
  ended_ = true;
  segments.swap(segments_);
}

}  // namespace psd::carrier
