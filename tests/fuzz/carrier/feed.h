#pragma once

// Feeds frames of a peer to the code behind the decoder, as a link does.

#include <unistd.h>

#include <memory>
#include <optional>

#include "absl/time/time.h"
#include "core/base/executor.h"
#include "core/base/memory_budget.h"
#include "core/base/shared_segment.h"
#include "core/base/status.h"
#include "core/base/unique_fd.h"
#include "core/carrier/assembler.h"
#include "core/carrier/frame.h"
#include "core/carrier/shm/lending/borrower.h"
#include "core/carrier/shm/lending/note_box.h"
#include "core/carrier/shm/lending/quota.h"
#include "core/carrier/shm/poller.h"
#include "core/carrier/waiting_line.h"

namespace psd::carrier {

inline Limits SmallLimits() {
  Limits limits;
  limits.max_header_bytes = 100'000;
  limits.max_message_bytes = 1'000'000;
  limits.max_buffers = 1000;
  limits.max_assembly_bytes = 2'000'000;
  return limits;
}

// The receiving half of a link, without a handler. It knows a segment of the peer with the number 1
// and two pages.
class Receiver {
 public:
  Receiver(const Limits& limits, const std::shared_ptr<MemoryAccount>& account)
      : limits_(limits),
        memory_{account, account},
        assembler_(limits, memory_, account, {std::make_shared<WaitingLine>(), absl::Seconds(1)}),
        borrower_(std::make_shared<NoteBox>(Poller().bell()), NewQuota(), NewQuota(),
                  std::make_shared<InlineExecutor>(), memory_) {
    const UniqueFd fd(dup(Segment().fd()));
    PSD_CHECK(borrower_.OnSegment({1, kSegmentBytes}, fd).ok(), "the segment can be mapped");
  }

  // Feeds one frame. Returns false if a link would end.
  bool Feed(const Frame& frame) {
    if (const auto* message = std::get_if<MessageFrame>(&frame)) return FeedMessage(*message);
    if (const auto* announce = std::get_if<AnnounceFrame>(&frame)) {
      bool ok = assembler_.OnAnnounce(*announce).ok();
      PSD_CHECK(assembler_.assembly_bytes() <= limits_.max_assembly_bytes, "assembly is bounded");
      return ok;
    }
    if (const auto* piece = std::get_if<PieceFrame>(&frame)) return FeedPiece(*piece);
    if (const auto* lent = std::get_if<LentFrame>(&frame)) return FeedLent(*lent);
    if (const auto* gone = std::get_if<GoneFrame>(&frame)) {
      return borrower_.OnGone(gone->segment).ok();
    }
    return true;
  }

 private:
  static constexpr size_t kSegmentBytes = 8192;

  // These are made once, because the fuzzer runs thousands of inputs in a second.
  static ShmPoller& Poller() {
    static ShmPoller* const poller = ShmPoller::Create("a fuzzer")->release();
    return *poller;
  }
  static const SharedSegment& Segment() {
    static const auto* const segment =
        new std::shared_ptr<SharedSegment>(*SharedSegment::Create(kSegmentBytes));
    return **segment;
  }
  static std::shared_ptr<Quota> NewQuota() {
    return std::make_shared<Quota>(10, 10 * kSegmentBytes);
  }

  bool FeedMessage(const MessageFrame& frame) const {
    absl::StatusOr<Message> whole = AssembleWhole(frame, memory_);
    PSD_CHECK(whole.ok() && whole->TotalBytes() <= kMaxWholeBytes,
              "a message in one frame is small");
    return true;
  }
  bool FeedPiece(const PieceFrame& piece) {
    const absl::StatusOr<Assembler::Room> room =
        assembler_.FindRoom(piece.transfer, absl::UnixEpoch());
    if (!room.ok()) return false;
    if (*room == Assembler::Room::kNone) return true;  // a link would leave the piece unread
    absl::StatusOr<Assembler::Slot> slot = assembler_.BeginPiece(piece);
    if (!slot.ok()) return false;
    slot->Fill();
    std::optional<Assembler::Whole> whole = assembler_.EndPiece(*slot);
    PSD_CHECK(!whole.has_value() || CheckShape(ShapeOf(whole->message), limits_).ok(),
              "within the limits");
    return true;
  }
  bool FeedLent(const LentFrame& frame) {
    const absl::StatusOr<Borrower::Outcome> outcome = borrower_.OnLent(frame);
    if (!outcome.ok()) return false;
    if (!outcome->message.has_value()) return true;
    PSD_CHECK(CheckShape(ShapeOf(*outcome->message), limits_).ok(), "within the limits");
    for (const Buffer& buffer : outcome->message->buffers) {
      // Reads the ends of what lies in the segment, which are inside its mapping.
      if (buffer.empty()) continue;
      read_ = read_ + static_cast<unsigned>(buffer.data()[0]) +
              static_cast<unsigned>(buffer.data()[buffer.size() - 1]);
    }
    return true;
  }

  const Limits limits_;
  const ReceiveMemory memory_;
  Assembler assembler_;
  Borrower borrower_;
  volatile unsigned read_ = 0;
};

}  // namespace psd::carrier
