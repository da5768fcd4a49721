#pragma once

// Puts messages together from frames. Every payload byte is copied once, into blocks of an
// allocator.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/buffer.h"
#include "core/base/memory_budget.h"
#include "core/carrier/byte_reader.h"
#include "core/carrier/carrier.h"
#include "core/carrier/frame.h"
#include "core/carrier/waiting_line.h"

namespace psd::carrier {

// The memory for received messages. Both members may be accounts of one budget.
struct ReceiveMemory {
  std::shared_ptr<Allocator> buffers;      // shared with other users of this memory
  std::shared_ptr<MemoryAccount> headers;  // charged for headers and tables of more than 4 KiB
};

// Memory for one message of a known shape, filled in any order.
//
// A large buffer gets its own block; small ones share blocks of at most 256 KiB, each at a multiple
// of kBlockAlignment, so that a message of a thousand small buffers costs few allocations. An
// assembly that was made by KeepHeader keeps the beginning of the header, and drops all else.
// Thread-compatible; Fill may run at once on several threads for ranges that do not overlap.
class MessageAssembly {
 public:
  // Errors: RESOURCE_EXHAUSTED from `memory`; nothing is taken then.
  static absl::StatusOr<std::unique_ptr<MessageAssembly>> Create(const MessageShape& shape,
                                                                 const ReceiveMemory& memory);
  static std::unique_ptr<MessageAssembly> KeepHeader(const MessageShape& shape);

  // Returns how many bytes Create takes from the accounts of `memory`.
  static size_t BytesFor(const MessageShape& shape);

  // Copies `bytes` to `offset`, which counts over the header and the buffers. Requires: the range
  // is within the message.
  void Fill(size_t offset, ByteReader bytes);

  // Returns the message. Requires: every byte was filled. Called once.
  Message Take();

 private:
  struct Target {
    std::byte* data;
    size_t size;
    size_t end;                    // offset behind its last byte, counted over header and buffers
    std::shared_ptr<Block> block;  // shared with the neighbours in the same block
  };

  absl::Status AllocateBlocks(const MessageShape& shape, Allocator& allocator);

  std::string header_;
  MemoryCharge header_charge_;
  std::vector<Target> targets_;
};

// A whole message from one frame. Errors: RESOURCE_EXHAUSTED from `memory`.
absl::StatusOr<Message> AssembleWhole(const MessageFrame& frame, const ReceiveMemory& memory);

// A received message for which there was no memory.
struct RefusedMessage {
  std::string header;  // its first kKeptHeaderBytes
  absl::Status why;    // RESOURCE_EXHAUSTED
};
// Refuses a message that is in one frame, and keeps the beginning of its header.
RefusedMessage RefuseWhole(const MessageFrame& frame, absl::Status why);

// The incoming transfers of one link. Pure bookkeeping; thread-compatible: call OnAnnounce,
// FindRoom, BeginPiece and EndPiece under one lock, and copy between the latter two without it.
//
// An announce costs no more than its own bytes. When the first piece has come, memory for the whole
// message is taken at once: two transfers with half of theirs each would wait for each other.
// Transfers take memory in the order of their ids. So a transfer that holds memory never depends on
// one that waits for memory, if the sender keeps the order (see BulkQueue). A transfer that finds
// no room waits in line. When its patience ends it is refused: its pieces are dropped as they come,
// and only its header is kept. While others wait, the transfers of one link take at most half of
// the memory that there can be. A transfer that stops or is very slow is found by LookForStall.
//
// Errors of all calls: INVALID_ARGUMENT when the peer broke the protocol (an unknown transfer, a
// repeated id or piece, a wrong offset or size, more than max_assembly_bytes or kMaxTransfers at
// once); RESOURCE_EXHAUSTED when there is no memory even to refuse; DEADLINE_EXCEEDED by
// LookForStall. After an error the link must end.
class Assembler {
  struct Transfer;

 public:
  // The memory for one piece. It keeps the memory of its transfer alive.
  class Slot {
   public:
    void Fill() { assembly_->Fill(offset_, payload_); }

   private:
    friend class Assembler;
    uint64_t transfer_ = 0;
    size_t offset_ = 0;
    ByteReader payload_;
    std::shared_ptr<MessageAssembly> assembly_;  // shared with the transfer
  };

  // The most transfers under way at once. An honest peer has a few.
  static constexpr size_t kMaxTransfers = 1024;
  // A transfer that holds memory must make progress between two looks for stalls: at least one
  // piece, or, if a message found no room meanwhile, at least this fraction of its pieces. So no
  // transfer holds memory that others need for much longer than this many looks.
  static constexpr size_t kMostLooks = 16;

  // `bookkeeping` is charged for transfers that have no memory yet.
  Assembler(const Limits& limits, ReceiveMemory memory, std::shared_ptr<MemoryAccount> bookkeeping,
            WaitingRules waiting);
  ~Assembler();

  // Handles an announce. A repeated announce of a transfer must say the same as the first.
  absl::Status OnAnnounce(const AnnounceFrame& announce);

  enum class Room {
    kNone,   // no memory yet: leave the piece unread, and ask again soon
    kFound,  // there is memory now, and the sender waits to be told
    kThere,
  };
  // To be called before a piece of `transfer` begins. With `may_wait` false, the transfer is
  // refused if there is no room when all earlier transfers of the link have theirs.
  absl::StatusOr<Room> FindRoom(uint64_t transfer, absl::Time now, bool may_wait = true);

  // Checks a piece and marks it as received. Requires: FindRoom did not return kNone.
  absl::StatusOr<Slot> BeginPiece(const PieceFrame& piece);

  // A transfer whose last piece has come.
  struct Whole {
    Message message;
    absl::Status refused;  // not OK: `message` is only the header
  };
  // Records that `slot` was filled. Returns nothing if pieces are still missing.
  std::optional<Whole> EndPiece(const Slot& slot);

  // To be called at even intervals that are long enough for a piece to come. Errors:
  // DEADLINE_EXCEEDED if a transfer has made no progress since the previous call, or too little
  // while it holds memory that others need.
  absl::Status LookForStall();

  // Gives up all transfers.
  void Clear();

  size_t transfers() const { return transfers_.size(); }
  size_t assembly_bytes() const { return assembly_bytes_; }

 private:
  // Takes the memory if it is the transfer's turn. Returns true if pieces of the transfer can be
  // received.
  absl::StatusOr<bool> Seek(Transfer& transfer, absl::Time now, bool may_wait);
  // Drops the transfer's pieces from now on. Errors: RESOURCE_EXHAUSTED if not even its header can
  // be kept.
  absl::Status Refuse(Transfer& transfer, const absl::Status& why);

  const Limits limits_;
  const ReceiveMemory memory_;
  const std::shared_ptr<MemoryAccount> bookkeeping_;  // shared with the other links
  const WaitingRules waiting_;
  absl::flat_hash_map<uint64_t, std::unique_ptr<Transfer>> transfers_;
  size_t assembly_bytes_ = 0;
  size_t held_bytes_ = 0;       // the part of these bytes that belongs to transfers with memory
  uint64_t joined_before_ = 0;  // WaitingLine::joined at the last look for stalls
  uint64_t next_room_ = 1;      // all transfers before this one have memory, or are over
};

}  // namespace psd::carrier
