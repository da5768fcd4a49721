// Decodes arbitrary bytes as frames of a peer, and feeds the frames to an assembler.
//
// The first byte of an input says how the rest is cut into chunks. 0 means a single chunk.

#include <cstdint>
#include <memory>
#include <vector>

#include "core/base/buffer.h"
#include "core/base/memory_budget.h"
#include "core/base/status.h"
#include "core/carrier/assembler.h"
#include "core/carrier/frame.h"

namespace psd::carrier {
namespace {

Limits SmallLimits() {
  Limits limits;
  limits.max_header_bytes = 100'000;
  limits.max_message_bytes = 1'000'000;
  limits.max_buffers = 1000;
  limits.max_assembly_bytes = 2'000'000;
  return limits;
}

std::vector<absl::string_view> Cut(absl::string_view bytes, size_t chunk) {
  std::vector<absl::string_view> chunks;
  if (chunk == 0) chunk = bytes.size() + 1;
  for (size_t at = 0; at < bytes.size(); at += chunk) chunks.push_back(bytes.substr(at, chunk));
  return chunks;
}

// Feeds one frame. Returns false if a link would end.
bool Handle(const Frame& frame, const Limits& limits, const ReceiveMemory& memory,
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
    if (*room == Assembler::Room::kNone) return true;  // the link would leave it where it is
    absl::StatusOr<Assembler::Slot> slot = assembler.BeginPiece(*piece);
    if (!slot.ok()) return false;
    slot->Fill();
    std::optional<Assembler::Whole> whole = assembler.EndPiece(*slot);
    PSD_CHECK(!whole.has_value() || CheckShape(ShapeOf(whole->message), limits).ok(),
              "within the limits");
  }
  return true;
}

void RunOne(absl::string_view input) {
  if (input.empty()) return;
  Limits limits = SmallLimits();
  const auto account = MemoryAccount::Create(0, NewHeapAllocator());
  const ReceiveMemory memory{account, account};
  Assembler assembler(limits, memory, account, {std::make_shared<WaitingLine>(), absl::Seconds(1)});
  std::vector<absl::string_view> chunks =
      Cut(input.substr(1), static_cast<unsigned char>(input[0]));
  FrameDecoder decoder(ByteReader(chunks), limits);
  while (true) {
    absl::StatusOr<std::optional<Frame>> frame = decoder.Next();
    if (!frame.ok() || !frame->has_value()) return;
    if (!Handle(**frame, limits, memory, assembler)) return;
  }
}

}  // namespace
}  // namespace psd::carrier

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  psd::carrier::RunOne({reinterpret_cast<const char*>(data), size});
  return 0;
}
