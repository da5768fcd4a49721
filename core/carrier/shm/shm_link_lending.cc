// The part of ShmLink that lends and borrows messages.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/carrier/shm/shm_link.h"

namespace psd::carrier {

absl::StatusOr<bool> ShmLink::SendLent(Message& message) {
  if (!Lender::MayLend(message)) return false;
  {
    MutexLock lock(send_mutex_);
    PSD_RETURN_IF_ERROR(CheckRoom(message));
  }
  std::optional<Lender::Lent> lent = lender_.Lend(message, [this](const SharedSegment& segment) {
    const std::string body = EncodePassedSegment({segment.id(), segment.bytes()});
    return SendPacket(socket_.get(), PacketKind::kSegment, body, segment.fd()) == 0;
  });
  if (!lent.has_value()) return false;
  const absl::Status queued = EnqueueControl(lent->frame);
  if (!queued.ok()) {
    lender_.Cancel(lent->lease);
    return queued;
  }
  if (lent->copied_bytes > 0) {
    MutexLock lock(send_mutex_);
    copied_out_.Add(lent->copied_bytes);
  }
  PumpControl();
  return true;
}

absl::StatusOr<bool> ShmLink::HandleLending(const Frame& frame, Received& received) {
  if (const auto* lent = std::get_if<LentFrame>(&frame)) {
    PSD_ASSIGN_OR_RETURN(Borrower::Outcome outcome, borrower_.OnLent(*lent));
    TakeOutcome(std::move(outcome), received);
  } else if (const auto* returned = std::get_if<ReturnedFrame>(&frame)) {
    PSD_RETURN_IF_ERROR(lender_.OnReturned(returned->leases));
  } else if (const auto* declined = std::get_if<DeclinedFrame>(&frame)) {
    PSD_RETURN_IF_ERROR(HandleDeclined(*declined));
  } else if (const auto* gone = std::get_if<GoneFrame>(&frame)) {
    PSD_ASSIGN_OR_RETURN(const bool forgotten, borrower_.OnGone(gone->segment));
    if (forgotten) Tell([gone](FrameEncoder& encoder) { encoder.Forgotten(gone->segment); });
  } else if (const auto* forgotten = std::get_if<ForgottenFrame>(&frame)) {
    PSD_RETURN_IF_ERROR(lender_.OnForgotten(forgotten->segment));
  } else {
    return absl::InvalidArgumentError("a frame that does not belong into shared memory");
  }
  return true;
}

void ShmLink::TakeOutcome(Borrower::Outcome outcome, Received& received) {
  if (outcome.message.has_value()) {
    borrowed_.Add(outcome.borrowed_bytes);
    copied_in_.Add(outcome.message->BufferBytes() - outcome.borrowed_bytes);
  }
  received.message = std::move(outcome.message);
  received.refused = std::move(outcome.refused);
  if (!outcome.declined.has_value()) return;
  Tell([&outcome](FrameEncoder& encoder) { encoder.Declined(*outcome.declined); });
}

absl::Status ShmLink::HandleDeclined(const DeclinedFrame& declined) {
  PSD_ASSIGN_OR_RETURN(Message message, lender_.OnDeclined(declined));
  {
    // The message was accepted and charged when it was lent.
    MutexLock lock(send_mutex_);
    if (phase_ == Phase::kEnded) return absl::OkStatus();
    EnqueueBulk(std::move(message));
  }
  PumpBulk();
  return absl::OkStatus();
}

absl::Status ShmLink::OnSegment(const Packet& packet) {
  if (readers_.empty()) return absl::InvalidArgumentError("a segment before the hello");
  PSD_ASSIGN_OR_RETURN(const PassedSegment passed, DecodePassedSegment(packet.body));
  PSD_ASSIGN_OR_RETURN(const bool forgotten, borrower_.OnSegment(passed, packet.fd));
  if (forgotten) Tell([&passed](FrameEncoder& encoder) { encoder.Forgotten(passed.id); });
  return absl::OkStatus();
}

absl::Status ShmLink::DeliverParked() {
  PSD_ASSIGN_OR_RETURN(std::vector<Borrower::Outcome> ready, borrower_.TakeReady());
  for (Borrower::Outcome& outcome : ready) {
    Received received;
    TakeOutcome(std::move(outcome), received);
    Deliver(std::move(received));
  }
  return absl::OkStatus();
}

void ShmLink::TellNotes() {
  const NoteBox::Notes notes = notes_->TakeAll();
  borrower_.CountReturned(notes.returned.size());
  absl::Span<const uint64_t> returned = notes.returned;
  while (!returned.empty()) {
    const auto some = returned.subspan(0, kMaxReturned);
    Tell([some](FrameEncoder& encoder) { encoder.Returned(some); });
    returned.remove_prefix(some.size());
  }
  for (const uint64_t segment : lender_.OnGone(notes.gone)) {
    Tell([segment](FrameEncoder& encoder) { encoder.Gone(segment); });
  }
}

}  // namespace psd::carrier
