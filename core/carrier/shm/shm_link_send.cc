// The sending half of ShmLink.

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/carrier/link_rules.h"
#include "core/carrier/shm/shm_link.h"

namespace psd::carrier {
namespace {

// About the most bytes that a thread writes into a ring at once. The poller looks at the peer's
// rings then. Any other thread leaves the rest to the poller, so that nobody who sends one message
// is kept busy with those of others while the peer reads as fast as they are sent.
constexpr size_t kPumpBytes = size_t{256} << 10;
// The most frames that are taken from a queue at once, which are about kPumpBytes at most, too.
// Those that do not fit are put back under the lock, so their number must not grow with the queue.
constexpr size_t kFramesAtOnce = 64;

}  // namespace

absl::Status ShmLink::Send(Message message) {
  if (!notes_->empty()) TellNotes();
  if (message.TotalBytes() <= kMaxInlineBytes) {
    const absl::Status queued = EnqueueInline(message);
    if (queued.ok()) PumpControl();
    if (absl::IsResourceExhausted(queued) && message.buffers.empty()) EndUnread(queued);
    return queued;
  }
  PSD_ASSIGN_OR_RETURN(const bool lent, SendLent(message));
  return lent ? absl::OkStatus() : SendBulk(std::move(message));
}

absl::Status ShmLink::SendBulk(Message message) {
  {
    MutexLock lock(send_mutex_);
    PSD_RETURN_IF_ERROR(CheckRoom(message));
    // A peer that keeps up with what it is sent can draw on what is left to small messages.
    const ReceiveMemory& memory =
        bulk_queue_.empty() ? core_->small_memory() : core_->bulk_memory();
    PSD_ASSIGN_OR_RETURN(message.charge, ChargeQueued(message, *memory.headers, address_));
    EnqueueBulk(std::move(message));
  }
  PumpBulk();
  return absl::OkStatus();
}

absl::Status ShmLink::CheckRoom(const Message& message) const {
  if (phase_ == Phase::kEnded) {
    return absl::UnavailableError(absl::StrCat("the link to ", address_, " has ended"));
  }
  return CheckMaySend(message, queued_bytes_, send_limits_, address_);
}

absl::Status ShmLink::EnqueueInline(const Message& message) {
  FrameEncoder frame;
  frame.Whole(message);
  Queued queued = ToQueued(frame);
  MutexLock lock(send_mutex_);
  PSD_RETURN_IF_ERROR(CheckRoom(message));
  if (!message.buffers.empty()) copied_out_.Add(message.BufferBytes());
  return AppendControl(std::move(queued));
}

absl::Status ShmLink::EnqueueControl(FrameEncoder& encoder) {
  Queued queued = ToQueued(encoder);
  MutexLock lock(send_mutex_);
  if (phase_ != Phase::kOpen) return absl::UnavailableError("the link has ended");
  return AppendControl(std::move(queued));
}

absl::Status ShmLink::AppendControl(Queued queued) {
  queued.message_bytes = queued.frame.bytes;
  PSD_RETURN_IF_ERROR(control_charge_.Add(*core_->small_memory().headers, queued.message_bytes));
  queued_bytes_ += queued.message_bytes;
  Outlet& outlet = outlets_[kControl];
  if (outlet.queue.empty()) outlet.moved = true;
  outlet.queue.push_back(std::move(queued));
  return absl::OkStatus();
}

void ShmLink::EnqueueBulk(Message message) {
  queued_bytes_ += message.TotalBytes();
  copied_out_.Add(message.BufferBytes());
  if (bulk_queue_.empty()) bulk_moved_ = true;
  bulk_queue_.Add(std::move(message));
}

void ShmLink::EndUnread(const absl::Status& why) {
  End(absl::DeadlineExceededError(
      absl::StrCat(address_, " does not read what it is sent: ", why.message())));
}

ShmLink::Queued ShmLink::ToQueued(FrameEncoder& encoder) {
  Queued queued;
  queued.frame.bytes = encoder.bytes();
  queued.frame.parts = encoder.Take();
  return queued;
}

void ShmLink::SetPending(size_t number, bool pending) {
  const uint32_t bit = uint32_t{1} << number;
  if (pending) {
    pending_outlets_.fetch_or(bit);
  } else {
    pending_outlets_.fetch_and(~bit);
  }
}

std::optional<BulkQueue::Piece> ShmLink::NextPiece(size_t number) {
  if (number == kControl || phase_ != Phase::kOpen) return std::nullopt;
  std::optional<BulkQueue::Piece> piece = bulk_queue_.Next(number - 1);
  if (piece.has_value()) bulk_moved_ = true;
  return piece;
}

std::vector<ShmLink::Queued> ShmLink::EncodePiece(BulkQueue::Piece piece) {
  std::vector<Queued> frames;
  // An announce is a frame of its own record, because it is copied before it is read, and pieces
  // are not.
  if (std::exchange(piece.announce, false)) {
    FrameEncoder announce;
    announce.Announce({piece.transfer, piece.piece_bytes, ShapeOf(*piece.message)});
    frames.push_back(ToQueued(announce));
  }
  FrameEncoder encoder;
  piece.Encode(&encoder);
  frames.push_back(ToQueued(encoder));
  frames.back().message_bytes = piece.bytes;
  frames.back().charge = piece.message->charge;
  return frames;
}

ptrdiff_t ShmLink::CountAtOnce(const Outlet& outlet) {
  const size_t most = std::min(outlet.queue.size(), kFramesAtOnce);
  size_t count = 0;
  for (size_t bytes = 0; count < most && bytes < kPumpBytes; ++count) {
    bytes += outlet.queue[count].frame.bytes - outlet.queue[count].frame.written;
  }
  return static_cast<ptrdiff_t>(count);
}

std::vector<ShmLink::Queued> ShmLink::TakeNext(size_t number, std::optional<size_t>& frees) {
  std::optional<BulkQueue::Piece> piece;
  {
    MutexLock lock(send_mutex_);
    Outlet& outlet = outlets_[number];
    if (outlet.writing) return {};
    const auto end = outlet.queue.begin() + CountAtOnce(outlet);
    std::vector<Queued> frames(std::make_move_iterator(outlet.queue.begin()),
                               std::make_move_iterator(end));
    outlet.queue.erase(outlet.queue.begin(), end);
    if (frames.empty()) piece = NextPiece(number);
    if (frames.empty() && !piece.has_value()) {
      SetPending(number, false);
      return {};
    }
    outlet.writing = true;
    if (!piece.has_value()) return frames;
  }
  if (piece->frees.has_value()) frees = piece->frees;
  return EncodePiece(*std::move(piece));
}

bool ShmLink::PutBack(size_t number, std::vector<Queued> frames, size_t written, bool moved) {
  bool flushed = false;
  bool goes_on = true;
  {
    MutexLock lock(send_mutex_);
    Outlet& outlet = outlets_[number];
    outlet.writing = false;
    outlet.moved = outlet.moved || moved;
    for (size_t i = 0; i < written; ++i) {
      queued_bytes_ -= frames[i].message_bytes;
      if (number == kControl) control_charge_.Subtract(frames[i].message_bytes);
    }
    const bool full = written < frames.size();
    if (full && (phase_ == Phase::kOpen || (number == kControl && lingering_))) {
      outlet.queue.insert(outlet.queue.begin(),
                          std::make_move_iterator(frames.begin() + static_cast<long>(written)),
                          std::make_move_iterator(frames.end()));
    }
    if (full || outlet.starved) writers_[number]->SetStarved(full);
    outlet.starved = full;
    SetPending(number, full);
    goes_on = !full || writers_[number]->HasSpace();
    flushed = number == kControl && lingering_ && outlet.queue.empty();
  }
  if (flushed) StopLingering();
  return goes_on;
}

size_t ShmLink::Pump(size_t number, size_t most) {
  if (writers_.empty()) return 0;  // it ended before it was open
  std::optional<size_t> frees;
  size_t bytes = 0;
  for (bool goes_on = true; goes_on && bytes < most;) {
    std::vector<Queued> frames = TakeNext(number, frees);
    if (frames.empty()) break;
    absl::StatusOr<bool> whole = true;
    size_t written = 0;
    const size_t before = bytes;
    while (written < frames.size()) {
      OutgoingFrame& frame = frames[written].frame;
      const size_t at = frame.written;
      whole = writers_[number]->Write(frame);
      bytes += frame.written - at;
      if (!whole.ok() || !*whole) break;
      ++written;
    }
    goes_on = PutBack(number, std::move(frames), written, bytes > before);
    if (bytes > before) RingBell();
    if (!whole.ok()) {
      End(Annotate(whole.status(), Description()));
      return bytes;
    }
  }
  if (bytes >= most) SetPending(number, true);
  if (!frees.has_value()) return bytes;
  if (bytes < most) return bytes + Pump(1 + *frees, most - bytes);
  SetPending(1 + *frees, true);
  return bytes;
}

bool ShmLink::PumpAll() {
  bool any = false;
  const uint32_t pending = pending_outlets_.load();
  if (pending == 0) return false;
  for (size_t i = 0; i < writers_.size(); ++i) {
    if ((pending >> i & 1) != 0 && writers_[i]->HasSpace()) any = Pump(i, kPumpBytes) > 0 || any;
  }
  return any;
}

void ShmLink::PumpControl() {
  // The kick comes after the ring is marked as pending, so the poller finds it.
  if (Pump(kControl, kPumpBytes) >= kPumpBytes) poller_.Kick(shared_from_this());
}

void ShmLink::PumpBulk() {
  for (size_t i = 1; i < writers_.size(); ++i) Pump(i, kPumpBytes);
  // The rest is written by the poller, while this thread returns to its caller.
  if (HasWork()) poller_.Kick(shared_from_this());
}

void ShmLink::RingBell() {
  const DoorLine& door = peer_->header().door;
  if (door.asleep.load(std::memory_order_seq_cst) == 0) return;
  const uint32_t naps = door.naps.load(std::memory_order_relaxed);
  if (rung_.exchange(naps) != naps) SendPacket(socket_.get(), PacketKind::kBell);
}

}  // namespace psd::carrier
