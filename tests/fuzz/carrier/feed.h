#pragma once

// Feeds frames of a peer to the code behind the decoder, as a link does.

#include <optional>

#include "core/base/status.h"
#include "core/carrier/assembler.h"
#include "core/carrier/frame.h"

namespace psd::carrier {

inline Limits SmallLimits() {
  Limits limits;
  limits.max_header_bytes = 100'000;
  limits.max_message_bytes = 1'000'000;
  limits.max_buffers = 1000;
  limits.max_assembly_bytes = 2'000'000;
  return limits;
}

// Feeds one frame. Returns false if a link would end.
inline bool Feed(const Frame& frame, const Limits& limits, const ReceiveMemory& memory,
                 Assembler& assembler) {
  if (const auto* message = std::get_if<MessageFrame>(&frame)) {
    absl::StatusOr<Message> whole = AssembleWhole(*message, memory);
    PSD_CHECK(whole.ok() && whole->TotalBytes() <= kMaxWholeBytes,
              "a message in one frame is small");
    return true;
  }
  if (const auto* announce = std::get_if<AnnounceFrame>(&frame)) {
    bool ok = assembler.OnAnnounce(*announce).ok();
    PSD_CHECK(assembler.assembly_bytes() <= limits.max_assembly_bytes, "assembly is bounded");
    return ok;
  }
  if (const auto* piece = std::get_if<PieceFrame>(&frame)) {
    const absl::StatusOr<Assembler::Room> room =
        assembler.FindRoom(piece->transfer, absl::UnixEpoch());
    if (!room.ok()) return false;
    if (*room == Assembler::Room::kNone) return true;  // a link would leave the piece unread
    absl::StatusOr<Assembler::Slot> slot = assembler.BeginPiece(*piece);
    if (!slot.ok()) return false;
    slot->Fill();
    std::optional<Assembler::Whole> whole = assembler.EndPiece(*slot);
    PSD_CHECK(!whole.has_value() || CheckShape(ShapeOf(whole->message), limits).ok(),
              "within the limits");
  }
  return true;
}

}  // namespace psd::carrier
