// The receiving half of ShmLink.

#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/clock.h"
#include "core/base/status.h"
#include "core/carrier/shm/shm_link.h"

namespace psd::carrier {
namespace {

// The interval at which a message that waits for room tries again. It is not called back, because
// memory may be freed under any lock.
constexpr absl::Duration kRoomTick = absl::Milliseconds(5);
// The most frames of one round: so many control frames, and a piece of each other ring.
constexpr int kControlOfRound = 32;

}  // namespace

bool ShmLink::Poll() noexcept {
  if (!turn_.Enter()) return false;
  bool any = false;
  do {
    any = Work() || any;
  } while (!turn_.Leave());
  return any;
}

bool ShmLink::PollAsHelper() noexcept {
  if (!turn_.TryEnter()) return false;
  bool any = false;
  do {
    any = Work(kRoundsOfHelper) || any;
  } while (!turn_.Leave());
  return any;
}

bool ShmLink::Work(int rounds) {
  if (gone_.load()) return false;
  bool any = !readers_.empty() && !told_ && ReceiveAll(rounds);
  if (!notes_->empty()) TellNotes();
  any = PumpAll() || any;
  if (look_for_stalls_.exchange(false)) {
    const absl::Status stalled = LookForStalls();
    if (!stalled.ok()) End(stalled);
  }
  if (ended_.load()) FinishEnd();
  return any;
}

bool ShmLink::ReceiveAll(int rounds) {
  const bool gone = peer_gone_.load();
  bool any = false;
  if (borrower_.HasNews() && !ended_.load()) {
    const absl::Status delivered = DeliverParked();
    if (!delivered.ok()) {
      EndReceiving(delivered);
      return true;
    }
    any = true;
  }
  bool moved = true;
  for (int round = 0; moved && round < rounds; ++round) {
    moved = false;
    for (size_t ring = 0; ring < readers_.size(); ++ring) {
      const int most = ring == kControl ? kControlOfRound : 1;
      for (int i = 0; i < most && !ended_.load(); ++i) {
        const absl::StatusOr<bool> one = ReceiveOne(ring);
        if (!one.ok()) {
          EndReceiving(one.status());
          return true;
        }
        if (!*one) break;
        moved = true;
      }
    }
    any = any || moved;
  }
  unread_.store(moved);
  if (any) heard_.store(true, std::memory_order_relaxed);
  if (gone && !moved) {
    End(absl::UnavailableError(absl::StrCat("lost the link to ", address_, ": the process ended")));
  }
  return any;
}

void ShmLink::EndReceiving(const absl::Status& why) {
  End(Annotate(absl::IsResourceExhausted(why)
                   ? absl::UnavailableError(absl::StrCat("no memory to receive: ", why.message()))
                   : why,
               Description()));
}

absl::StatusOr<bool> ShmLink::ReceiveOne(size_t ring) {
  RingReader& reader = *readers_[ring];
  PSD_ASSIGN_OR_RETURN(const std::optional<ByteReader> bytes, reader.Next());
  if (reader.TakeWakesWriter()) RingBell();
  if (!bytes.has_value()) return false;
  FrameDecoder decoder(*bytes, core_->options().limits);
  PSD_ASSIGN_OR_RETURN(const std::optional<Frame> frame, decoder.Next());
  if (!frame.has_value() || decoder.remaining() != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("malformed frame: ", decoder.remaining(), " bytes behind it in its record"));
  }
  Received received;
  PSD_ASSIGN_OR_RETURN(const bool handled, HandleFrame(ring, *frame, received));
  if (!handled) {
    TryAgainLater(ring);
    return false;
  }
  waiting_rings_.fetch_and(~(uint32_t{1} << ring));
  // The space is given back before the handler works.
  reader.Pop();
  if (reader.TakeWakesWriter()) RingBell();
  Deliver(std::move(received));
  return true;
}

void ShmLink::TryAgainLater(size_t ring) {
  waiting_rings_.fetch_or(uint32_t{1} << ring);
  if (room_timer_set_.exchange(true)) return;
  core_->timers().RunAfter(kRoomTick, [weak = weak_from_this()] {
    std::shared_ptr<ShmLink> self = weak.lock();
    if (self == nullptr) return;
    self->room_timer_set_.store(false);
    self->poller_.Kick(self);
  });
}

absl::StatusOr<bool> ShmLink::HandleFrame(size_t ring, const Frame& frame, Received& received) {
  const bool piece = std::holds_alternative<PieceFrame>(frame);
  const bool announce = std::holds_alternative<AnnounceFrame>(frame);
  if ((piece || announce) != (ring != kControl)) {
    return absl::InvalidArgumentError(ring == kControl ? "a piece in the ring for control"
                                                       : "control in a ring for pieces");
  }
  if (piece) return HandlePiece(std::get<PieceFrame>(frame), received);
  if (announce) {
    PSD_RETURN_IF_ERROR(assembler_.OnAnnounce(std::get<AnnounceFrame>(frame)));
  } else if (const auto* message = std::get_if<MessageFrame>(&frame)) {
    if (message->payload.remaining() > kMaxInlineBytes) {
      return absl::InvalidArgumentError("a large message in the ring for control");
    }
    HandleMessage(*message, received);
  } else if (const auto* ack = std::get_if<AckFrame>(&frame)) {
    PSD_RETURN_IF_ERROR(HandleAck(ack->transfer));
  } else if (const auto* room = std::get_if<RoomFrame>(&frame)) {
    PSD_RETURN_IF_ERROR(HandleRoom(room->transfer));
  } else if (std::holds_alternative<GoodbyeFrame>(frame)) {
    received.goodbye = true;
  } else {
    return HandleLending(frame, received);
  }
  return true;
}

void ShmLink::HandleMessage(const MessageFrame& frame, Received& received) {
  absl::StatusOr<Message> whole = AssembleWhole(frame, core_->small_memory());
  if (whole.ok()) {
    if (!whole->buffers.empty()) copied_in_.Add(whole->BufferBytes());
    received.message = *std::move(whole);
  } else {
    received.refused = RefuseWhole(frame, whole.status());
  }
}

absl::StatusOr<bool> ShmLink::HandlePiece(const PieceFrame& piece, Received& received) {
  PSD_ASSIGN_OR_RETURN(const Assembler::Room room,
                       assembler_.FindRoom(piece.transfer, Clock::Steady().Now()));
  if (room == Assembler::Room::kNone) return false;
  PSD_ASSIGN_OR_RETURN(Assembler::Slot slot, assembler_.BeginPiece(piece));
  if (room == Assembler::Room::kFound) {
    Tell([&piece](FrameEncoder& encoder) { encoder.Room(piece.transfer); });
  }
  slot.Fill();
  std::optional<Assembler::Whole> whole = assembler_.EndPiece(slot);
  if (!whole.has_value()) return true;
  if (whole->refused.ok()) {
    copied_in_.Add(whole->message.BufferBytes());
    received.message = std::move(whole->message);
  } else {
    received.refused = RefusedMessage{std::move(whole->message.header), std::move(whole->refused)};
  }
  Tell([&piece](FrameEncoder& encoder) { encoder.Ack(piece.transfer); });
  return true;
}

absl::Status ShmLink::HandleAck(uint64_t transfer) {
  {
    MutexLock lock(send_mutex_);
    if (phase_ == Phase::kEnded) return absl::OkStatus();
    PSD_RETURN_IF_ERROR(bulk_queue_.OnAck(transfer));
    bulk_moved_ = true;
    if (bulk_queue_.empty()) return absl::OkStatus();
  }
  PumpBulk();
  return absl::OkStatus();
}

absl::Status ShmLink::HandleRoom(uint64_t transfer) {
  {
    MutexLock lock(send_mutex_);
    if (phase_ == Phase::kEnded) return absl::OkStatus();
    PSD_RETURN_IF_ERROR(bulk_queue_.OnRoom(transfer));
  }
  PumpBulk();
  return absl::OkStatus();
}

void ShmLink::Deliver(Received received) {
  if (received.message.has_value()) handler_->OnMessage(*std::move(received.message));
  if (received.refused.has_value()) {
    handler_->OnRefused(std::move(received.refused->header), std::move(received.refused->why));
  }
  if (received.goodbye) End(absl::UnavailableError(absl::StrCat(address_, " closed the link")));
}

// Stalls.

void ShmLink::WatchForStalls() {
  core_->timers().RunAfter(core_->options().stall_timeout, [weak = weak_from_this()] {
    std::shared_ptr<ShmLink> self = weak.lock();
    if (self == nullptr || self->ended_.load()) return;
    self->look_for_stalls_.store(true);
    self->poller_.Kick(self);
    self->WatchForStalls();
  });
}

absl::Status ShmLink::LookForStalls() {
  PSD_RETURN_IF_ERROR(LookForUnread());
  PSD_RETURN_IF_ERROR(Annotate(borrower_.LookForStall(), Description()));
  return Annotate(assembler_.LookForStall(), Description());
}

absl::Status ShmLink::LookForUnread() {
  MutexLock lock(send_mutex_);
  bool moves = std::exchange(bulk_moved_, false) || bulk_queue_.empty();
  for (Outlet& outlet : outlets_) {
    const bool idle = !outlet.writing && outlet.queue.empty();
    moves = (std::exchange(outlet.moved, false) || idle) && moves;
  }
  if (moves) return absl::OkStatus();
  return absl::DeadlineExceededError(
      absl::StrCat(address_, " reads nothing of the ", queued_bytes_, " bytes that wait for it"));
}

}  // namespace psd::carrier
