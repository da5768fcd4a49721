#pragma once

// Makes messages of frames: places every payload byte once, into blocks of an allocator.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/buffer.h"
#include "core/carrier/byte_reader.h"
#include "core/carrier/carrier.h"
#include "core/carrier/frame.h"

namespace psd::carrier {

// Memory for one message of a known shape, filled in any order.
//
// A large buffer gets a block of its own; small ones share blocks of at most 256 KiB, each at a
// multiple of kBlockAlignment, so that a message of a thousand small buffers costs few allocations.
// Thread-compatible; Fill may run at once on several threads for ranges that do not overlap.
class MessageAssembly {
 public:
  // Errors: RESOURCE_EXHAUSTED from the allocator.
  static absl::StatusOr<std::unique_ptr<MessageAssembly>> Create(const MessageShape& shape,
                                                                 Allocator& allocator);

  // Copies all of `bytes` to [offset, ...), counted over header and buffers.
  // Requires: the range lies within the message.
  void Fill(size_t offset, ByteReader bytes);

  // Requires: every byte was filled. Called once.
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
  std::vector<Target> targets_;
};

// A whole message from one frame. Errors: RESOURCE_EXHAUSTED from the allocator.
absl::StatusOr<Message> AssembleWhole(const MessageFrame& frame, Allocator& allocator);

// The transfers of one link that are on their way in. Pure bookkeeping; thread-compatible: call
// OnAnnounce, BeginPiece and EndPiece under one lock, and copy between the latter two without it.
//
// Errors of all calls: INVALID_ARGUMENT when the peer broke the protocol (an unknown transfer, a
// piece twice, a wrong offset or size, more than max_assembly_bytes at once); RESOURCE_EXHAUSTED
// when there is no memory. After an error the link must end.
class Assembler {
  struct Transfer;

 public:
  // A place for one piece. Keeps its transfer's memory alive.
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

  // `allocator` is shared with whoever hands out memory for received payloads.
  Assembler(const Limits& limits, std::shared_ptr<Allocator> allocator);
  ~Assembler();

  // The first announce of a transfer reserves its memory; a repeated one must say the same. Ids
  // are the sender's choice, unique among its transfers under way.
  absl::Status OnAnnounce(const AnnounceFrame& announce);

  // Checks a piece and marks it as received.
  absl::StatusOr<Slot> BeginPiece(const PieceFrame& piece);

  // `slot` was filled. The message, if this was its last piece.
  std::optional<Message> EndPiece(const Slot& slot);

  // Gives up all transfers.
  void Clear();

  size_t transfers() const { return transfers_.size(); }
  size_t assembly_bytes() const { return assembly_bytes_; }

 private:
  const Limits limits_;
  const std::shared_ptr<Allocator> allocator_;  // shared with the carrier
  absl::flat_hash_map<uint64_t, std::unique_ptr<Transfer>> transfers_;
  size_t assembly_bytes_ = 0;
};

}  // namespace psd::carrier
