#include "core/carrier/bulk_queue.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace psd::carrier {
namespace {

// The number of messages that take turns. A larger number would only delay each of them.
constexpr size_t kMaxActive = 4;

// The minimum number of pieces of a message, unless pieces would be smaller than kMinPieceBytes.
constexpr size_t kMinPieces = 4;

}  // namespace

void BulkQueue::Piece::Encode(FrameEncoder* encoder) const {
  if (announce) encoder->Announce({transfer, piece_bytes, ShapeOf(*message)});
  PieceCursor at = cursor;
  encoder->Piece(transfer, *message, bytes, &at);
}

void BulkQueue::Add(Message message) {
  Transfer transfer;
  transfer.id = next_id_++;
  transfer.total_bytes = message.TotalBytes();
  transfer.cost_bytes = AssemblyBytes(ShapeOf(message));
  transfer.piece_bytes = PieceBytes(transfer.total_bytes);
  transfer.message = std::make_shared<const Message>(std::move(message));
  waiting_.push_back(std::move(transfer));
}

size_t BulkQueue::PieceBytes(size_t total_bytes) const {
  return std::min(piece_bytes_, std::max(kMinPieceBytes, total_bytes / kMinPieces));
}

bool BulkQueue::MayBegin(size_t stream) const {
  if (waiting_.empty() || active_.size() >= kMaxActive ||
      waiting_.front().cost_bytes + unacked_bytes_ > peer_assembly_bytes_) {
    return false;
  }
  // If it is sent beside others, it may block its stream, so they need another one.
  const bool another = (streams_ & ~(uint32_t{1} << stream)) != 0;
  return active_.empty() || (another && AllHaveRoom());
}

bool BulkQueue::AllHaveRoom() const {
  return std::all_of(active_.begin(), active_.end(), HasRoom);
}

std::deque<BulkQueue::Transfer>::iterator BulkQueue::Choose(size_t stream) {
  streams_ |= uint32_t{1} << stream;
  if (MayBegin(stream)) {
    unacked_bytes_ += waiting_.front().cost_bytes;
    active_.push_front(std::move(waiting_.front()));
    waiting_.pop_front();
    probe_stream_ = stream;
    return active_.begin();
  }
  if (active_.size() == 1) return active_.begin();
  if (stream == probe_stream_ && !AllHaveRoom()) return active_.end();
  return std::find_if(active_.begin(), active_.end(), HasRoom);
}

void BulkQueue::MoveOn(PieceCursor* cursor, const Message& message, size_t bytes) {
  size_t in_header =
      std::min(bytes, message.header.size() - std::min(message.header.size(), cursor->offset));
  cursor->offset += bytes;
  bytes -= in_header;
  while (bytes > 0) {
    size_t left = message.buffers[cursor->buffer].size() - cursor->offset_in_buffer;
    size_t part = std::min(bytes, left);
    cursor->offset_in_buffer += part;
    bytes -= part;
    if (part == left) {
      ++cursor->buffer;
      cursor->offset_in_buffer = 0;
    }
  }
}

std::optional<BulkQueue::Piece> BulkQueue::Next(size_t stream) {
  const auto chosen = Choose(stream);
  if (chosen == active_.end()) return std::nullopt;
  Transfer transfer = std::move(*chosen);
  active_.erase(chosen);
  Piece piece;
  piece.transfer = transfer.id;
  piece.bytes = std::min(transfer.piece_bytes, transfer.total_bytes - transfer.cursor.offset);
  piece.announce = (transfer.announced_streams >> stream & 1) == 0;
  piece.piece_bytes = transfer.piece_bytes;
  piece.cursor = transfer.cursor;
  piece.message = transfer.message;
  transfer.announced_streams |= uint32_t{1} << stream;
  MoveOn(&transfer.cursor, *transfer.message, piece.bytes);
  if (transfer.cursor.offset == transfer.total_bytes) {
    unacked_.emplace(transfer.id, transfer.cost_bytes);
    if (active_.size() == 1 && !active_.front().has_room) piece.frees = probe_stream_;
  } else {
    active_.push_back(std::move(transfer));
  }
  return piece;
}

absl::Status BulkQueue::OnRoom(uint64_t transfer) {
  for (Transfer& active : active_) {
    if (active.id == transfer) active.has_room = true;
  }
  if (transfer < next_id_ && (waiting_.empty() || transfer < waiting_.front().id))
    return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("room for transfer ", transfer, ", which has not begun"));
}

absl::Status BulkQueue::OnAck(uint64_t transfer) {
  auto found = unacked_.find(transfer);
  if (found == unacked_.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("an ack of transfer ", transfer, ", which is not under way"));
  }
  unacked_bytes_ -= found->second;
  unacked_.erase(found);
  return absl::OkStatus();
}

void BulkQueue::Clear() {
  waiting_.clear();
  active_.clear();
  unacked_.clear();
  unacked_bytes_ = 0;
}

}  // namespace psd::carrier
