#pragma once

// Decides which piece of which large message is sent next.

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "core/carrier/carrier.h"
#include "core/carrier/frame.h"

namespace psd::carrier {

// The large messages that one end of a link sends, cut into pieces for several streams.
//
// A few messages are under way at a time and take turns piece by piece, so that a small one does
// not wait for a huge one. The bytes that are under way and not acknowledged never exceed what the
// peer accepts (its max_assembly_bytes).
//
// If the peer has no memory for a message, it leaves a stream unread that brings a piece of this
// message. Such a piece must not hold up pieces of messages that have memory, because it may be
// their memory that it waits for. So messages begin in the order in which they were added, and a
// message is mixed with others only once the peer has said that it has memory for it (OnRoom).
// Until then at most one piece of it is sent beside the others, and nothing follows on the stream
// that carries this piece. When all earlier messages have been sent completely, the message is sent
// without waiting for OnRoom.
//
// Pure; thread-compatible.
class BulkQueue {
 public:
  static constexpr size_t kMaxStreams = 16;

  // One piece, to be encoded outside of any lock.
  struct Piece {
    uint64_t transfer = 0;
    size_t bytes = 0;
    bool announce = false;  // whether this is the transfer's first piece on this stream
    size_t piece_bytes = 0;
    PieceCursor cursor;
    std::shared_ptr<const Message> message;  // shared by the pieces of one transfer
    // A stream that may have a piece to send again, although Next has returned nothing for it.
    std::optional<size_t> frees;

    void Encode(FrameEncoder* encoder) const;
  };

  // Pieces have at most `piece_bytes`. A message that would have only a few such pieces is cut into
  // smaller ones, so that the streams can share it and the peer reads while this end writes.
  explicit BulkQueue(size_t piece_bytes) : piece_bytes_(piece_bytes) {}

  // Sets how many bytes the peer accepts. Nothing is sent before this call.
  void set_peer_assembly_bytes(size_t bytes) { peer_assembly_bytes_ = bytes; }

  // Requires: CheckShape passed with the peer's limits.
  void Add(Message message);

  // Returns the next piece for `stream` (below kMaxStreams), if there is one that may be sent now.
  std::optional<Piece> Next(size_t stream);

  // To be called when the peer has memory for a transfer, or drops it: its pieces do not wait
  // there. Errors: INVALID_ARGUMENT if no transfer with that id has begun.
  absl::Status OnRoom(uint64_t transfer);

  // To be called when the peer has received a transfer. Errors: INVALID_ARGUMENT if no transfer
  // with that id was sent completely.
  absl::Status OnAck(uint64_t transfer);

  // Drops everything.
  void Clear();

  bool empty() const { return waiting_.empty() && active_.empty(); }

 private:
  struct Transfer {
    uint64_t id = 0;
    size_t total_bytes = 0;
    size_t cost_bytes = 0;
    size_t piece_bytes = 0;
    PieceCursor cursor;
    uint32_t announced_streams = 0;          // one bit per stream
    bool has_room = false;                   // OnRoom was called
    std::shared_ptr<const Message> message;  // shared with the pieces handed out
  };

  static bool HasRoom(const Transfer& transfer) { return transfer.has_room; }
  bool AllHaveRoom() const;
  bool MayBegin(size_t stream) const;
  // Returns the transfer whose piece `stream` may carry now, or active_.end().
  std::deque<Transfer>::iterator Choose(size_t stream);
  size_t PieceBytes(size_t total_bytes) const;
  static void MoveOn(PieceCursor* cursor, const Message& message, size_t bytes);

  const size_t piece_bytes_;
  size_t peer_assembly_bytes_ = 0;
  uint64_t next_id_ = 1;
  uint32_t streams_ = 0;  // the streams that have asked for pieces, one bit each
  std::deque<Transfer> waiting_;
  // Transfers that have begun and were not yet handed out completely, in the order of their turns.
  // All but the one that began last have room.
  std::deque<Transfer> active_;
  // The stream of the first piece of the last transfer.
  size_t probe_stream_ = 0;
  absl::flat_hash_map<uint64_t, size_t> unacked_;  // transfers handed out completely; id -> cost
  size_t unacked_bytes_ = 0;                       // cost of the transfers in active_ and unacked_
};

}  // namespace psd::carrier
